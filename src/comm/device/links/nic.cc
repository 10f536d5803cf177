#include "comm/device/links/nic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "comm/link_spec.h"

namespace braid::comm {

namespace {

using fabric::Nic;
using fabric::Node;
using fabric::PathKind;

bool is_nic(const Nic& nic) { return nic.is_up && nic.provider != "tcp"; }

const Node& node_of(const fabric::Fabric& fabric, size_t rank) {
  return fabric.nodes[static_cast<size_t>(fabric.node_of_rank[rank])];
}

// The same on all ranks: the name of a node without one, or nothing.
std::string node_without_nic(const fabric::Fabric& fabric) {
  for (const int node : fabric.node_of_rank) {
    const Node& there = fabric.nodes[static_cast<size_t>(node)];
    if (std::none_of(there.nics.begin(), there.nics.end(), is_nic))
      return there.name.empty() ? "this node" : there.name;
  }
  return fabric.node_of_rank.empty() ? "this node" : "";
}

bool is_same_address(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

// kSys is the farthest, and what is not known is as far.
PathKind distance(const Node& node, const std::string& gpu_pci, size_t nic) {
  for (const fabric::Path& path : node.gpu_nic_paths) {
    if (path.to != static_cast<int>(nic) || path.from < 0 ||
        path.from >= static_cast<int>(node.gpus.size()))
      continue;
    if (is_same_address(node.gpus[static_cast<size_t>(path.from)].pci_address, gpu_pci))
      return path.kind;
  }
  return PathKind::kSys;
}

// There is one. `turn`: which of those that are equally near.
const Nic& nearest(const Node& node, const std::string& gpu_pci, size_t turn) {
  std::vector<const Nic*> best;
  PathKind best_kind = PathKind::kSys;
  for (size_t i = 0; i < node.nics.size(); ++i) {
    if (!is_nic(node.nics[i])) continue;
    const PathKind kind = distance(node, gpu_pci, i);
    if (best.empty() || kind < best_kind) {
      best.clear();
      best_kind = kind;
    }
    if (kind == best_kind) best.push_back(&node.nics[i]);
  }
  return *best[turn % best.size()];
}

NicChoice named_by(const Config& config) {
  NicChoice choice;
  choice.provider = config.text("BRAID_RDMA_PROVIDER");
  const std::string& addresses = config.text("BRAID_RDMA_ADDRS");
  choice.address = addresses.substr(0, addresses.find(','));
  choice.name = fmt::format("{} at {}", choice.provider, choice.address);
  choice.is_real = choice.provider == "verbs" || choice.provider == "efa";
  return choice;
}

}  // namespace

Status check_nic_wish(const Config& config) {
  const std::string& wish = config.text("BRAID_GPU_RDMA");
  if (wish == "off" || wish == "auto" || wish == "on") return {};
  return invalid_argument("BRAID_GPU_RDMA: asked for off, auto or on, found '{}'", wish);
}

Result<NicChoice> choose_nic(const Config& config, const fabric::Fabric& fabric, int rank,
                             const std::string& gpu_pci) {
  BRAID_RETURN_IF_ERROR(check_nic_wish(config));
  const std::string& wish = config.text("BRAID_GPU_RDMA");
  NicChoice choice;
  choice.why_off = "BRAID_GPU_RDMA is off";
  if (wish == "off") return choice;
  const std::string without = node_without_nic(fabric);
  if (wish == "on" && (!without.empty() || config.is_set("BRAID_RDMA_PROVIDER"))) {
    BRAID_RETURN_IF_ERROR(check_provider(config.text("BRAID_RDMA_PROVIDER")));
    return named_by(config);
  }
  choice.why_off = fmt::format("no NIC ({} has none that is up; sockets do not count)", without);
  if (!without.empty()) return choice;
  const auto index = static_cast<size_t>(rank);
  const auto& nodes = fabric.node_of_rank;
  const auto turn = std::count(nodes.begin(), nodes.begin() + rank, nodes[index]);
  const Nic& nic = nearest(node_of(fabric, index), gpu_pci, static_cast<size_t>(turn));
  return NicChoice{"", nic.provider, nic.address, nic.name, true};
}

bool reaches_gpus(sys::FabricLibrary& library, const NicChoice& nic) {
  const auto found = library.interfaces(nic.provider);
  if (!found.ok()) return false;
  return std::any_of(found->begin(), found->end(), [&](const sys::FabricInterface& i) {
    const bool is_it = i.name == nic.name || (!nic.address.empty() && i.address == nic.address);
    return is_it && i.reaches_gpus;
  });
}

std::string how_in_words(const NicChoice& nic, bool reaches) {
  if (!nic.is_real) return fmt::format("pinned bounce: {} is no NIC", nic.name);
  return reaches
             ? fmt::format("pinned bounce: NIC {} could reach GPU memory, which is not used yet",
                           nic.name)
             : fmt::format("pinned bounce: NIC {} cannot reach GPU memory", nic.name);
}

}  // namespace braid::comm
