// The cores of an engine's worker: those near the NICs that it polls, as the kernel tells them.
//
// The worker's thread is set to all of them, so that several engines do not pile on one, and never to
// a core that the thread which made the engine may not use: whoever is bound (taskset, numactl, Slurm)
// stays bound. No other thread is touched, and what the worker begins does not inherit it (WideCores).
//
// Threads: as each says.
#pragma once

#include <string>
#include <vector>

#include "engine/ground.h"
#include "sys/host/cores.h"
#include "sys/net/api.h"
#include "sys/sysfs/api.h"

namespace braid::engine {

/// The facts by which choose_cores() decides.
struct CoreFacts {
  const sys::Sysfs& sysfs;
  std::vector<sys::Interface> interfaces;  // of this host
  std::vector<NicRequest> nics;
  std::string gpu;      // its PCI address; empty: none
  sys::CoreSet usable;  // by this thread
};
struct CoreChoice {
  sys::CoreSet cores;  // some of those that are usable; empty: leave the thread as it is
  std::string why;     // "near eth0 (node 1)"
};

/// Usable cores that are near any of the NICs; if the GPU is near one of those NICs, only cores
/// that are near the GPU as well. Cores near the GPU where no NIC has any: bonds, VLANs, virtio,
/// loopback and the host's own copies have none. Empty when there are none, or when all usable
/// cores are near, as on a machine of one node.
CoreChoice choose_cores(const CoreFacts& facts);

/// Sets the calling thread, which is to be a worker, to cores by its engine's options;
/// ground.worker_cores then says where it runs and why. Where the kernel refuses, a warning says
/// so, and it is not asked again.
void settle_worker(Ground& ground);

/// While it lives, a worker's thread may run wherever its engine's maker may, and so may threads that
/// libraries begin meanwhile: on a worker's few cores they would wait for a worker that spins. Nothing
/// on other threads. Three system calls. With the turn.
class WideCores {
 public:
  WideCores();
  ~WideCores();
  WideCores(const WideCores&) = delete;
  WideCores& operator=(const WideCores&) = delete;
};

}  // namespace braid::engine
