#include "fabric/merge.h"

#include <algorithm>
#include <map>

#include "base/units.h"

namespace braid::fabric {

namespace {

// Order, not truth: one core copies through cache-resident slots at 5 to 9 GB/s, a loopback socket
// carries about a fifth. Tuning replaces all of it.
constexpr double kShmGbps = 5.0;
constexpr double kStagedGbps = 5.0;
constexpr double kRdmaHostGbps = 1.0;
constexpr int64_t kShmNs = 1'000;
constexpr int64_t kStagedNs = 2'000;
constexpr int64_t kRdmaHostNs = 30'000;

// Parts of the specified rates that were measured on 8 x H200 (CUDA 13.0, driver 580, one direction
// while the other one is busy too): NVLink by copy engine 385-390 of 450; PCIe 5 x16 55 of 63 at
// best, and 40 through host memory in small slots that are used again.
constexpr double kNvlinkUsable = 390.0 / 450;
constexpr double kPcieUsable = 55.0 / 63;
constexpr double kHostPathUsable = 40.0 / 63;
constexpr double kNicUsable = 48.5 / 50;  // ConnectX-7 NDR: 48-49 GB/s
// A copy-engine copy costs 5 us besides its bytes (measured); the host path's two stages with their
// flags about 60 us more than NVLink's one, a NIC's hop 14 us (the value that NCCL's cost model
// has).
constexpr int64_t kNvlinkNs = 5_us;
constexpr int64_t kHostPathNs = 65_us;
constexpr int64_t kNicNs = 14_us;

// Name of the resource that the host path and the NIC have in common; equal on all ranks.
constexpr const char* kGpuSlot = "gpu-pcie";

// Data rate of a PCIe lane after encoding: 2.5 and 5 GT/s with 8b/10b, from generation 3 on
// 128b/130b.
double pcie_gbps(int gen, int width) {
  constexpr double kPerLane[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
  return gen >= 1 && gen <= 6 && width > 0 ? kPerLane[gen] * width : 0;
}

Link gpu_link(const char* name, LinkKind kind, double rate_gbps, int64_t latency_ns) {
  Link link;
  link.name = name;
  link.kind = kind;
  link.rate_gbps = rate_gbps;
  link.latency_ns = latency_ns;
  link.source = Source::kSpecified;
  return link;
}

struct RankGpu {
  int node;
  int gpu;
};

// Empty when a node has fewer GPUs than ranks.
std::vector<RankGpu> gpus_of_ranks(const Fabric& fabric) {
  std::vector<RankGpu> all;
  std::map<int, int> next;
  for (const int node : fabric.node_of_rank) {
    const int gpu = next[node]++;
    if (gpu >= static_cast<int>(fabric.nodes[static_cast<size_t>(node)].gpus.size())) return {};
    all.push_back({node, gpu});
  }
  return all;
}

// NIC rate per rank, the slowest rank's; 0 when a rank has none.
double nic_gbps(const Fabric& fabric, const std::vector<RankGpu>& ranks) {
  std::map<std::pair<int, int>, int> users;  // of (node, nic)
  for (const RankGpu& r : ranks)
    ++users[{r.node, nearest_nic(fabric.nodes[static_cast<size_t>(r.node)], r.gpu)}];
  double slowest = -1;
  for (const auto& [key, count] : users) {
    if (key.second < 0) return 0;
    const Nic& nic =
        fabric.nodes[static_cast<size_t>(key.first)].nics[static_cast<size_t>(key.second)];
    const double rate = nic.rate_gbps * kNicUsable / count;
    slowest = slowest < 0 ? rate : std::min(slowest, rate);
  }
  return std::max(slowest, 0.0);
}

}  // namespace

Fabric merge(const std::vector<Node>& node_of_each_rank) {
  Fabric fabric;
  for (const Node& node : node_of_each_rank) {
    const auto known =
        std::find_if(fabric.nodes.begin(), fabric.nodes.end(),
                     [&](const Node& other) { return other.host_id == node.host_id; });
    fabric.node_of_rank.push_back(static_cast<int>(known - fabric.nodes.begin()));
    if (known == fabric.nodes.end()) fabric.nodes.push_back(node);
  }
  return fabric;
}

bool is_one_host(const Fabric& fabric) { return fabric.nodes.size() == 1; }

Link assumed_link(LinkKind kind, std::string name) {
  Link link;
  link.name = std::move(name);
  link.kind = kind;
  link.can_multicast = kind == LinkKind::kStaged;
  if (kind != LinkKind::kRdma) link.shares_with = "core";
  link.rate_gbps = kind == LinkKind::kShm      ? kShmGbps
                   : kind == LinkKind::kStaged ? kStagedGbps
                                               : kRdmaHostGbps;
  link.latency_ns = kind == LinkKind::kShm      ? kShmNs
                    : kind == LinkKind::kStaged ? kStagedNs
                                                : kRdmaHostNs;
  return link;
}

Link paced_link(LinkKind kind, std::string name, double rate_gbps, int64_t latency_ns) {
  Link link = assumed_link(kind, std::move(name));
  link.latency_ns += latency_ns;
  link.source = Source::kPaced;
  if (rate_gbps <= 0) return link;
  link.rate_gbps = rate_gbps;
  link.shares_with.clear();
  return link;
}

int nearest_nic(const Node& node, int gpu) {
  int best = -1;
  PathKind best_kind = PathKind::kSys;
  for (const Path& path : node.gpu_nic_paths) {
    if (path.from != gpu || path.to < 0 || path.to >= static_cast<int>(node.nics.size())) continue;
    const Nic& nic = node.nics[static_cast<size_t>(path.to)];
    if (!nic.is_up || (best >= 0 && path.kind >= best_kind)) continue;
    best = path.to;
    best_kind = path.kind;
  }
  return best;
}

std::vector<Link> gpu_links(const Fabric& fabric) {
  const std::vector<RankGpu> ranks = gpus_of_ranks(fabric);
  if (ranks.empty()) return {};
  double nvlink = -1;
  double pcie = -1;
  for (const RankGpu& r : ranks) {
    const Gpu& gpu = fabric.nodes[static_cast<size_t>(r.node)].gpus[static_cast<size_t>(r.gpu)];
    const double slot = pcie_gbps(gpu.pcie_gen, gpu.pcie_width);
    nvlink = nvlink < 0 ? gpu.nvlink_gbps : std::min(nvlink, gpu.nvlink_gbps);
    pcie = pcie < 0 ? slot : std::min(pcie, slot);
  }
  std::vector<Link> links;
  if (is_one_host(fabric) && nvlink > 0)
    links.push_back(gpu_link("nvlink", LinkKind::kNvlink, nvlink * kNvlinkUsable, kNvlinkNs));
  if (is_one_host(fabric) && pcie > 0) {
    links.push_back(gpu_link("pcie", LinkKind::kPcie, pcie * kHostPathUsable, kHostPathNs));
    links.back().can_multicast = true;  // host memory: written once, read by all
  }
  if (const double nic = nic_gbps(fabric, ranks); nic > 0)
    links.push_back(gpu_link("rdma", LinkKind::kRdma, nic, kNicNs));
  for (Link& link : links) {
    if (link.kind == LinkKind::kNvlink || pcie <= 0) continue;
    link.shares_with = kGpuSlot;
    link.resource_gbps = pcie * kPcieUsable;
  }
  return links;
}

}  // namespace braid::fabric
