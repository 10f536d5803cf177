// KernelCache: the kernels that a comm has asked for. Every call looks here, without the lock that
// the comms of a process share (sys/cuda/loaded_kernels.h).
//
// Threads: as comm::Device.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "sys/cuda/loaded_kernels.h"

namespace braid::comm {

class KernelCache {
 public:
  KernelCache(sys::Cuda& cuda, int ordinal) : loaded_(sys::LoadedKernels::of(cuda, ordinal)) {}

  /// An entry of an embedded fatbin, which is loaded at its first use: coll/device/preload.h asks
  /// for all. It may be launched with `shared_bytes` of dynamic shared memory, the same at every
  /// use. unavailable when this build has no kernels.
  Result<sys::Kernel> find(std::span<const std::byte> fatbin, const char* name,
                           uint32_t shared_bytes = 0) {
    const auto known = kernels_.find(name);
    if (known != kernels_.end()) return known->second;
    BRAID_ASSIGN_OR_RETURN(const sys::Kernel found, loaded_->find(fatbin, name, shared_bytes));
    return kernels_[name] = found;
  }

 private:
  std::shared_ptr<sys::LoadedKernels> loaded_;
  std::map<std::string, sys::Kernel, std::less<>> kernels_;
};

}  // namespace braid::comm
