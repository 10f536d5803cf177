// What is on this node: cores and memory, GPUs, NICs, and how close they are. Read once, from
// sources that tests replace: a whole machine of 8 GPUs, 2 sockets and 4 NICs can be faked and
// planned for.
//
// Discovery does not fail: what a source cannot tell is left out, since every fact is optional to
// braid. What was left out and why comes back in words.
#pragma once

#include <string>
#include <vector>

#include "fabric/types.h"
#include "sys/net/api.h"
#include "sys/nvml/api.h"
#include "sys/sysfs/api.h"

namespace braid::fabric {

struct World {
  const sys::Sysfs& sysfs;
  sys::Nvml& nvml;
  std::vector<sys::Interface> interfaces;
  std::string host_id;
  std::string host_name;
};

struct Discovery {
  Node node;
  std::vector<std::string> gaps;  // "nvml: unavailable: ...", for the log
};

Discovery discover(const World& world);
/// This machine. `host_id_override` as sys::host_id() takes it.
Result<Discovery> discover_here(std::string_view host_id_override);

/// How close two PCI devices are, from their resolved sysfs paths
/// ("/sys/devices/pci0000:00/0000:00:01.0/...") and NUMA nodes (-1: unknown). Without a path for
/// both, the NUMA nodes alone decide.
PathKind pci_path(const std::string& a, int a_numa, const std::string& b, int b_numa);

}  // namespace braid::fabric
