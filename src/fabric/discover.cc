#include "fabric/discover.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "sys/host/api.h"

namespace braid::fabric {

namespace {

constexpr const char* kCpus = "/sys/devices/system/cpu";
constexpr const char* kNumaNodes = "/sys/devices/system/node";
constexpr const char* kPciDevices = "/sys/bus/pci/devices";
constexpr const char* kInfiniband = "/sys/class/infiniband";
constexpr const char* kNetworks = "/sys/class/net";

bool has_number(const std::string& name, std::string_view prefix) {
  return name.size() > prefix.size() && name.compare(0, prefix.size(), prefix) == 0 &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// The first run of digits in `text`, 0 when there is none or it is absurdly long.
uint64_t first_number(std::string_view text) {
  const size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return 0;
  uint64_t value = 0;
  for (size_t i = begin; i < text.size() && i < begin + 18 && text[i] >= '0' && text[i] <= '9'; ++i)
    value = value * 10 + static_cast<uint64_t>(text[i] - '0');
  return value;
}

// Bytes of the line that says "MemTotal: ... kB" in a meminfo file.
uint64_t memory_total(const sys::Sysfs& sysfs, const std::string& path) {
  const Result<std::string> text = sysfs.read(path);
  if (!text.ok()) return 0;
  const size_t at = text.value().find("MemTotal:");
  return at == std::string::npos ? 0
                                 : first_number(std::string_view(text.value()).substr(at)) * 1024;
}

// Cores per socket: hardware threads of one core count once.
std::map<int, std::set<int64_t>> cores_of_sockets(const sys::Sysfs& sysfs) {
  std::map<int, std::set<int64_t>> cores;
  for (const std::string& name : sysfs.list(kCpus)) {
    if (!has_number(name, "cpu")) continue;
    const std::string topology = fmt::format("{}/{}/topology", kCpus, name);
    const auto cpu = static_cast<int64_t>(first_number(name));
    const auto socket = static_cast<int>(
        std::max<int64_t>(sysfs.read_integer(topology + "/physical_package_id", 0), 0));
    cores[socket].insert(sysfs.read_integer(topology + "/core_id", cpu));
  }
  return cores;
}

// Memory per socket: a NUMA node belongs to the socket of its first CPU.
std::map<int, uint64_t> memory_of_sockets(const sys::Sysfs& sysfs) {
  std::map<int, uint64_t> memory;
  for (const std::string& name : sysfs.list(kNumaNodes)) {
    if (!has_number(name, "node")) continue;
    const std::string node = fmt::format("{}/{}", kNumaNodes, name);
    const Result<std::string> cpus = sysfs.read(node + "/cpulist");
    const uint64_t first_cpu = cpus.ok() ? first_number(cpus.value()) : 0;
    const std::string package =
        fmt::format("{}/cpu{}/topology/physical_package_id", kCpus, first_cpu);
    memory[static_cast<int>(std::max<int64_t>(sysfs.read_integer(package, 0), 0))] +=
        memory_total(sysfs, node + "/meminfo");
  }
  return memory;
}

std::vector<Cpu> find_cpus(const sys::Sysfs& sysfs) {
  std::map<int, uint64_t> memory = memory_of_sockets(sysfs);
  std::vector<Cpu> cpus;
  for (const auto& [socket, cores] : cores_of_sockets(sysfs))
    cpus.push_back({socket, static_cast<int>(cores.size()), memory[socket]});
  uint64_t total = 0;
  for (const Cpu& cpu : cpus) total += cpu.memory_bytes;
  // A kernel without NUMA has one memory.
  if (!cpus.empty() && total == 0) cpus.front().memory_bytes = memory_total(sysfs, "/proc/meminfo");
  return cpus;
}

Gpu gpu_of(const sys::GpuFacts& facts, int index, const sys::Sysfs& sysfs) {
  Gpu gpu;
  gpu.index = index;
  gpu.name = facts.name;
  gpu.pci_address = facts.pci_address;
  gpu.numa_node = facts.numa_node;
  if (gpu.numa_node < 0)
    gpu.numa_node = static_cast<int>(
        sysfs.read_integer(fmt::format("{}/{}/numa_node", kPciDevices, facts.pci_address), -1));
  gpu.memory_bytes = facts.memory_bytes;
  gpu.num_nvlinks = facts.num_nvlinks;
  gpu.nvlink_gbps = facts.num_nvlinks * facts.nvlink_gbps_per_link;
  gpu.pcie_gen = facts.pcie_gen;
  gpu.pcie_width = facts.pcie_width;
  return gpu;
}

std::vector<Gpu> find_gpus(const World& world, std::vector<std::string>& gaps) {
  std::vector<Gpu> gpus;
  const Result<std::vector<sys::GpuFacts>> facts = world.nvml.gpus();
  if (!facts.ok()) gaps.push_back("nvml: " + facts.status().to_string());
  if (!facts.ok()) return gpus;
  for (const sys::GpuFacts& gpu : facts.value())
    gpus.push_back(gpu_of(gpu, static_cast<int>(gpus.size()), world.sysfs));
  return gpus;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// "0000:1b:00.0" of a device's `device` link; empty for what is not on PCI (loopback, veth).
std::string pci_address_of(const sys::Sysfs& sysfs, const std::string& device) {
  const Result<std::string> path = sysfs.resolve(device);
  if (!path.ok()) return "";
  const std::string name = last_part(path.value());
  return name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.' ? name : "";
}

std::string address_of(const World& world, const std::string& interface) {
  for (const sys::Interface& i : world.interfaces)
    if (i.name == interface) return i.address.host();
  return "";
}

// Facts common to both kinds of NIC; `device` is its link to the PCI device.
Nic nic_of(const sys::Sysfs& sysfs, const std::string& name, const std::string& device) {
  Nic nic;
  nic.name = name;
  nic.pci_address = pci_address_of(sysfs, device);
  nic.numa_node = static_cast<int>(sysfs.read_integer(device + "/numa_node", -1));
  return nic;
}

std::string rdma_provider(const sys::Sysfs& sysfs, const std::string& device) {
  const Result<std::string> driver = sysfs.resolve(device + "/driver");
  return driver.ok() && last_part(driver.value()) == "efa" ? "efa" : "verbs";
}

// One per InfiniBand or RoCE device, by its first port. `taken` gets the network interfaces that
// belong to them.
std::vector<Nic> find_rdma_nics(const World& world, std::set<std::string>& taken) {
  std::vector<Nic> nics;
  for (const std::string& name : world.sysfs.list(kInfiniband)) {
    const std::string base = fmt::format("{}/{}", kInfiniband, name);
    Nic nic = nic_of(world.sysfs, name, base + "/device");
    nic.provider = rdma_provider(world.sysfs, base + "/device");
    // "4: ACTIVE"
    if (const Result<std::string> state = world.sysfs.read(base + "/ports/1/state"); state.ok())
      nic.is_up = first_number(state.value()) == 4;
    // "400 Gb/sec (4X NDR)"
    if (const Result<std::string> rate = world.sysfs.read(base + "/ports/1/rate"); rate.ok())
      nic.rate_gbps = static_cast<double>(first_number(rate.value())) / 8;
    for (const std::string& interface : world.sysfs.list(base + "/device/net")) {
      taken.insert(interface);
      if (nic.address.empty()) nic.address = address_of(world, interface);
    }
    nics.push_back(std::move(nic));
  }
  return nics;
}

// Network interfaces with an address that are no RDMA device's: usable through sockets.
std::vector<Nic> find_socket_nics(const World& world, const std::set<std::string>& taken) {
  std::vector<Nic> nics;
  std::set<std::string> seen;
  for (const sys::Interface& interface : world.interfaces) {
    if (interface.is_loopback || taken.count(interface.name) != 0 ||
        !seen.insert(interface.name).second)
      continue;
    const std::string base = fmt::format("{}/{}", kNetworks, interface.name);
    Nic nic = nic_of(world.sysfs, interface.name, base + "/device");
    nic.provider = "tcp";
    nic.address = interface.address.host();
    nic.is_up = true;
    // Mbit/s; -1 or an error where the driver has no speed.
    nic.rate_gbps =
        static_cast<double>(std::max<int64_t>(world.sysfs.read_integer(base + "/speed", 0), 0)) /
        8000;
    nics.push_back(std::move(nic));
  }
  return nics;
}

std::string device_path(const sys::Sysfs& sysfs, const std::string& pci_address) {
  if (pci_address.empty()) return "";
  const Result<std::string> path = sysfs.resolve(fmt::format("{}/{}", kPciDevices, pci_address));
  return path.ok() ? path.value() : "";
}

void find_paths(const sys::Sysfs& sysfs, Node& node) {
  std::vector<std::string> gpu_at;
  for (const Gpu& gpu : node.gpus) gpu_at.push_back(device_path(sysfs, gpu.pci_address));
  for (size_t i = 0; i < node.gpus.size(); ++i) {
    const Gpu& a = node.gpus[i];
    for (size_t j = 0; j < node.gpus.size(); ++j) {
      if (i == j) continue;
      const Gpu& b = node.gpus[j];
      Path path{static_cast<int>(i), static_cast<int>(j),
                pci_path(gpu_at[i], a.numa_node, gpu_at[j], b.numa_node), 0};
      path.rate_gbps = std::min(a.nvlink_gbps, b.nvlink_gbps);
      if (path.rate_gbps > 0) path.kind = PathKind::kNvlink;
      node.gpu_paths.push_back(path);
    }
    for (size_t j = 0; j < node.nics.size(); ++j) {
      const Nic& nic = node.nics[j];
      const PathKind kind =
          pci_path(gpu_at[i], a.numa_node, device_path(sysfs, nic.pci_address), nic.numa_node);
      node.gpu_nic_paths.push_back({static_cast<int>(i), static_cast<int>(j), kind, nic.rate_gbps});
    }
  }
}

// Parts of a resolved path below /sys/devices: root complex, bridges, device.
std::vector<std::string_view> pci_parts(std::string_view path) {
  constexpr std::string_view kRoot = "/sys/devices/";
  if (path.substr(0, kRoot.size()) != kRoot) return {};
  return split(path.substr(kRoot.size()), '/');
}

}  // namespace

PathKind pci_path(const std::string& a, int a_numa, const std::string& b, int b_numa) {
  const std::vector<std::string_view> a_parts = pci_parts(a);
  const std::vector<std::string_view> b_parts = pci_parts(b);
  const auto differ = std::mismatch(a_parts.begin(), a_parts.end(), b_parts.begin(), b_parts.end());
  const auto common = differ.first - a_parts.begin();
  if (common == 0) return a_numa >= 0 && a_numa == b_numa ? PathKind::kNode : PathKind::kSys;
  const auto deepest = std::max(a_parts.end() - differ.first, b_parts.end() - differ.second);
  if (deepest == 0) return PathKind::kSelf;
  if (common == 1) return PathKind::kPhb;  // the root complex alone
  // Below one switch a device hangs on its own downstream port: port and device are what differs.
  return deepest <= 2 ? PathKind::kPix : PathKind::kPxb;
}

Discovery discover(const World& world) {
  Discovery found;
  found.node.name = world.host_name;
  found.node.host_id = world.host_id;
  found.node.cpus = find_cpus(world.sysfs);
  if (found.node.cpus.empty())
    found.gaps.push_back(fmt::format("sysfs: no processors under {}", kCpus));
  found.node.gpus = find_gpus(world, found.gaps);
  std::set<std::string> taken;
  found.node.nics = find_rdma_nics(world, taken);
  for (Nic& nic : find_socket_nics(world, taken)) found.node.nics.push_back(std::move(nic));
  find_paths(world.sysfs, found.node);
  return found;
}

Result<Discovery> discover_here(std::string_view host_id_override) {
  BRAID_ASSIGN_OR_RETURN(std::string host_id, sys::host_id(host_id_override));
  Result<std::vector<sys::Interface>> interfaces = sys::list_interfaces();
  const Status why = interfaces.status();
  World world{sys::real_sysfs(), sys::real_nvml(), {}, std::move(host_id), sys::host_name()};
  if (why.ok()) world.interfaces = std::move(interfaces).value();
  Discovery found = discover(world);
  if (!why.ok()) found.gaps.push_back("interfaces: " + why.to_string());
  return found;
}

}  // namespace braid::fabric
