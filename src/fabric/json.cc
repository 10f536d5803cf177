#include "fabric/json.h"

#include <nlohmann/json.hpp>

#include "fabric/json_read.h"

namespace braid::fabric {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kVersion = 1;

// Bounds of what a file may claim: generous for any machine, small enough that a hostile one costs
// milliseconds.
constexpr size_t kMaxTextBytes = 8 << 20;
constexpr size_t kMaxNodes = 4096;
constexpr size_t kMaxRanks = 65536;
constexpr size_t kMaxDevices = 1024;
constexpr size_t kMaxPaths = 16384;
constexpr size_t kMaxLinks = 64;
constexpr size_t kMaxNameBytes = 256;
constexpr int64_t kMaxCount = 1 << 20;
constexpr uint64_t kMaxMemory = uint64_t{1} << 50;
constexpr double kMaxGbps = 1e6;
constexpr int64_t kMaxLatencyNs = int64_t{1} << 50;

Json json_of(const Cpu& cpu) {
  return {{"socket", cpu.socket}, {"num_cores", cpu.num_cores}, {"memory_bytes", cpu.memory_bytes}};
}

Json json_of(const Gpu& gpu) {
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"pci_address", gpu.pci_address},
          {"numa_node", gpu.numa_node},
          {"memory_bytes", gpu.memory_bytes},
          {"num_nvlinks", gpu.num_nvlinks},
          {"nvlink_gbps", gpu.nvlink_gbps},
          {"pcie_gen", gpu.pcie_gen},
          {"pcie_width", gpu.pcie_width}};
}

Json json_of(const Nic& nic) {
  return {{"name", nic.name},           {"pci_address", nic.pci_address},
          {"numa_node", nic.numa_node}, {"rate_gbps", nic.rate_gbps},
          {"is_up", nic.is_up},         {"provider", nic.provider},
          {"address", nic.address}};
}

Json json_of(const Path& path) {
  return {{"from", path.from},
          {"to", path.to},
          {"kind", path_kind_name(path.kind)},
          {"rate_gbps", path.rate_gbps}};
}

Json json_of(const Link& link) {
  return {{"name", link.name},
          {"kind", link_kind_name(link.kind)},
          {"rate_gbps", link.rate_gbps},
          {"latency_ns", link.latency_ns},
          {"can_multicast", link.can_multicast},
          {"source", source_name(link.source)},
          {"shares_with", link.shares_with},
          {"resource_gbps", link.resource_gbps}};
}

Json json_of(const Node& node);

template <typename T>
Json list_of(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(json_of(item));
  return list;
}

Json json_of(const Node& node) {
  return {{"name", node.name},
          {"host_id", node.host_id},
          {"cpus", list_of(node.cpus)},
          {"gpus", list_of(node.gpus)},
          {"nics", list_of(node.nics)},
          {"gpu_paths", list_of(node.gpu_paths)},
          {"gpu_nic_paths", list_of(node.gpu_nic_paths)}};
}

std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The enumerator whose name the text is; a failure of that place otherwise.
template <typename Enum>
Enum read_name(const JsonReader& value, Enum last, const char* (*name_of)(Enum) noexcept) {
  const std::string name = value.text(kMaxNameBytes);
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  value.fail(fmt::format("'{}' is unknown", name));
  return last;
}

int read_int(const JsonReader& value, int64_t least, int64_t most) {
  return static_cast<int>(value.signed_integer(least, most));
}

Cpu read_cpu(const JsonReader& v) {
  return {read_int(v.child("socket"), 0, kMaxCount), read_int(v.child("num_cores"), 0, kMaxCount),
          v.child("memory_bytes").integer(0, kMaxMemory)};
}

Gpu read_gpu(const JsonReader& v) {
  Gpu gpu;
  gpu.index = read_int(v.child("index"), 0, kMaxCount);
  gpu.name = v.child("name").text(kMaxNameBytes);
  gpu.pci_address = v.child("pci_address").text(kMaxNameBytes);
  gpu.numa_node = read_int(v.child("numa_node"), -1, kMaxCount);
  gpu.memory_bytes = v.child("memory_bytes").integer(0, kMaxMemory);
  gpu.num_nvlinks = read_int(v.child("num_nvlinks"), 0, kMaxCount);
  gpu.nvlink_gbps = v.child("nvlink_gbps").number(0, kMaxGbps);
  gpu.pcie_gen = read_int(v.child("pcie_gen"), 0, 100);
  gpu.pcie_width = read_int(v.child("pcie_width"), 0, 100);
  return gpu;
}

Nic read_nic(const JsonReader& v) {
  Nic nic;
  nic.name = v.child("name").text(kMaxNameBytes);
  nic.pci_address = v.child("pci_address").text(kMaxNameBytes);
  nic.numa_node = read_int(v.child("numa_node"), -1, kMaxCount);
  nic.rate_gbps = v.child("rate_gbps").number(0, kMaxGbps);
  nic.is_up = v.child("is_up").boolean();
  nic.provider = v.child("provider").text(kMaxNameBytes);
  nic.address = v.child("address").text(kMaxNameBytes);
  return nic;
}

// `num_to`: how many devices the path may lead to. Without any, no index is right.
Path read_path(const JsonReader& v, size_t num_from, size_t num_to) {
  if (num_from == 0 || num_to == 0) v.fail("a path between devices that are not there");
  Path path;
  path.from = read_int(v.child("from"), 0, static_cast<int64_t>(num_from) - 1);
  path.to = read_int(v.child("to"), 0, static_cast<int64_t>(num_to) - 1);
  path.kind = read_name(v.child("kind"), PathKind::kSys, path_kind_name);
  path.rate_gbps = v.child("rate_gbps").number(0, kMaxGbps);
  return path;
}

Link read_link(const JsonReader& v) {
  Link link;
  link.name = v.child("name").text(kMaxNameBytes);
  link.kind = read_name(v.child("kind"), LinkKind::kPcie, link_kind_name);
  link.rate_gbps = v.child("rate_gbps").number(0, kMaxGbps);
  link.latency_ns = v.child("latency_ns").signed_integer(0, kMaxLatencyNs);
  link.can_multicast = v.child("can_multicast").boolean();
  link.source = read_name(v.child("source"), Source::kPaced, source_name);
  link.shares_with = v.child("shares_with").text(kMaxNameBytes);
  link.resource_gbps = v.child("resource_gbps").number(0, kMaxGbps);
  return link;
}

template <typename Read>
auto read_list(const JsonReader& list, size_t most, Read read) {
  std::vector<decltype(read(list))> items;
  const size_t size = list.size(most);
  for (size_t i = 0; i < size && list.ok(); ++i) items.push_back(read(list.at(i)));
  return items;
}

Node read_node(const JsonReader& v) {
  Node node;
  node.name = v.child("name").text(kMaxNameBytes);
  node.host_id = v.child("host_id").text(kMaxNameBytes);
  node.cpus = read_list(v.child("cpus"), kMaxDevices, read_cpu);
  node.gpus = read_list(v.child("gpus"), kMaxDevices, read_gpu);
  node.nics = read_list(v.child("nics"), kMaxDevices, read_nic);
  const size_t num_gpus = node.gpus.size();
  const size_t num_nics = node.nics.size();
  node.gpu_paths = read_list(v.child("gpu_paths"), kMaxPaths,
                             [&](const JsonReader& p) { return read_path(p, num_gpus, num_gpus); });
  node.gpu_nic_paths = read_list(v.child("gpu_nic_paths"), kMaxPaths, [&](const JsonReader& p) {
    return read_path(p, num_gpus, num_nics);
  });
  return node;
}

void check_head(const JsonReader& root, const char* expected) {
  const std::string format = root.child("format").text(kMaxNameBytes);
  if (format != expected) root.fail(fmt::format("format is '{}', not '{}'", format, expected));
  const uint64_t version = root.child("version").integer(0, UINT64_MAX);
  if (version != kVersion)
    root.fail(fmt::format("version is {}, this build reads {}", version, kVersion));
}

}  // namespace

std::string to_json(const Fabric& fabric) {
  return text_of({{"format", "braid-fabric"},
                  {"version", kVersion},
                  {"nodes", list_of(fabric.nodes)},
                  {"links", list_of(fabric.links)},
                  {"node_of_rank", fabric.node_of_rank}});
}

std::string to_json(const Node& node) {
  return text_of({{"format", "braid-node"}, {"version", kVersion}, {"node", json_of(node)}});
}

Result<Fabric> parse_fabric(std::string_view text) {
  const JsonReader root = JsonReader::parse(text, "fabric", kMaxTextBytes);
  check_head(root, "braid-fabric");
  Fabric fabric;
  fabric.nodes = read_list(root.child("nodes"), kMaxNodes, read_node);
  fabric.links = read_list(root.child("links"), kMaxLinks, read_link);
  const JsonReader ranks = root.child("node_of_rank");
  if (root.ok() && fabric.nodes.empty() && ranks.size(kMaxRanks) > 0)
    ranks.fail("ranks, but no node");
  const auto last = static_cast<int64_t>(fabric.nodes.size()) - 1;
  fabric.node_of_rank =
      read_list(ranks, kMaxRanks, [&](const JsonReader& r) { return read_int(r, 0, last); });
  if (!root.ok()) return root.status();
  return fabric;
}

Result<Node> parse_node(std::string_view text) {
  const JsonReader root = JsonReader::parse(text, "node", kMaxTextBytes);
  check_head(root, "braid-node");
  Node node = read_node(root.child("node"));
  if (!root.ok()) return root.status();
  return node;
}

}  // namespace braid::fabric
