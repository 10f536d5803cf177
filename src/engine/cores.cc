#include "engine/cores.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace braid::engine {
namespace {

using sys::CoreSet;

// The cores of a worker's thread that was set to some; null on all other threads.
struct Settled {
  sys::Cores* affinity = nullptr;
  CoreSet near, wide;
  std::string* text = nullptr;  // its engine's, which outlives it
};
thread_local Settled settled;

CoreSet common(const CoreSet& a, const CoreSet& b) {
  CoreSet out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(out, out.end()));
  return out;
}

// NICs are named by an address of theirs, as an interface ("eth0:1" is another address of eth0), or as
// a device: "mlx5_0:2" by its second port, "rdmap0s6-rdm" by a kind of endpoint of efa's.
struct Device {
  std::string name;
  std::string path;
};
Device device_of(const NicRequest& nic, const std::vector<sys::Interface>& interfaces) {
  for (const sys::Interface& interface : interfaces) {
    if (nic.address.empty() || interface.address.host() != nic.address) continue;
    const std::string name = interface.name.substr(0, interface.name.find(':'));
    return {name, fmt::format("/sys/class/net/{}/device", name)};
  }
  const bool is_efa = nic.provider.starts_with("efa");
  const std::string name = nic.address.substr(0, nic.address.find(is_efa ? '-' : ':'));
  return {name, fmt::format("/sys/class/infiniband/{}/device", name)};
}

CoreSet cores_near(const sys::Sysfs& sysfs, const std::string& device) {
  Result<std::string> list = sysfs.read(device + "/local_cpulist");
  if (!list.ok()) return {};
  Result<CoreSet> cores = sys::parse_cores(*list);
  return cores.ok() ? std::move(cores).value() : CoreSet();
}

struct Near {
  CoreSet cores;
  std::vector<std::string> whom;  // "eth0 (node 1)"
  std::string text() const { return fmt::format("{}", fmt::join(whom, ", ")); }
};

void add(const sys::Sysfs& sysfs, const Device& device, Near& out) {
  CoreSet cores = cores_near(sysfs, device.path);
  const int64_t node = sysfs.read_integer(device.path + "/numa_node", -1);
  const std::string name = node < 0 ? device.name : fmt::format("{} (node {})", device.name, node);
  const bool is_new = std::find(out.whom.begin(), out.whom.end(), name) == out.whom.end();
  if (cores.empty() || !is_new) return;
  out.cores.merge(cores);
  out.whom.push_back(name);
}

Near near_of(const CoreFacts& facts) {
  Near nics, gpu;
  for (const NicRequest& nic : facts.nics) add(facts.sysfs, device_of(nic, facts.interfaces), nics);
  if (!facts.gpu.empty())
    add(facts.sysfs, {"GPU " + facts.gpu, "/sys/bus/pci/devices/" + facts.gpu}, gpu);
  if (nics.cores.empty()) return gpu;
  CoreSet both = common(nics.cores, gpu.cores);
  if (both.empty() || both == nics.cores) return nics;
  nics.cores = std::move(both);
  nics.whom.push_back(gpu.whom.front());
  return nics;
}

CoreFacts facts_of(const Ground& ground, CoreSet usable) {
  const EngineOptions& options = ground.options;
  CoreFacts facts{options.sysfs != nullptr ? *options.sysfs : sys::real_sysfs(),
                  {},
                  options.nics,
                  "",
                  std::move(usable)};
  if (Result<std::vector<sys::Interface>> found = sys::list_interfaces(); found.ok())
    facts.interfaces = std::move(found).value();
  if (ground.gpu != nullptr)
    if (const auto gpu = ground.gpu->cuda().device(ground.gpu->device()); gpu.ok())
      facts.gpu = gpu->pci_address;
  return facts;
}

std::string any_of(const CoreSet& usable, std::string_view why) {
  return fmt::format("any of cores {}: {}", sys::text_of(usable), why);
}

void give_up(std::string_view why) {
  *settled.text = any_of(settled.affinity->usable(), why);
  settled = {};
}

// A refusal is the last word: to ask for each endpoint would bring a warning each.
void use(const CoreSet& cores) {
  const Status set = settled.affinity->use(cores);
  if (set.ok()) return;
  log::warn("engine", "a worker stays on the cores that it has: {}", set.message());
  give_up(set.message());
}

}  // namespace

CoreChoice choose_cores(const CoreFacts& facts) {
  const Near near = near_of(facts);
  if (near.cores.empty()) return {{}, "no NIC and no GPU of it has cores near it"};
  CoreSet cores = common(near.cores, facts.usable);
  if (cores.empty())
    return {{},
            fmt::format("none of {}, near {}, may be used", sys::text_of(near.cores), near.text())};
  if (cores == facts.usable) return {{}, "all are near " + near.text()};
  return {std::move(cores), "near " + near.text()};
}

void settle_worker(Ground& ground) {
  const EngineOptions& options = ground.options;
  std::string& text = ground.worker_cores;
  sys::Cores& affinity = options.affinity != nullptr ? *options.affinity : sys::real_cores();
  CoreSet usable = affinity.usable();
  if (options.cores == "off") return (void)(text = any_of(usable, "near ones are switched off"));
  CoreChoice choice = choose_cores(facts_of(ground, usable));
  text = choice.cores.empty() ? any_of(usable, choice.why)
                              : fmt::format("cores {}: {}", sys::text_of(choice.cores), choice.why);
  if (choice.cores.empty()) return;
  settled = {&affinity, std::move(choice.cores), std::move(usable), &text};
  use(settled.near);
}

// Somebody who has moved the thread meanwhile (taskset -a, a cpuset that has changed) means it.
WideCores::WideCores() {
  if (settled.affinity == nullptr) return;
  if (settled.affinity->usable() == settled.near)
    use(settled.wide);
  else
    give_up("they were set from elsewhere");
}

WideCores::~WideCores() {
  if (settled.affinity != nullptr) use(settled.near);
}

}  // namespace braid::engine
