// The way to the real communicator, for who times it: open until the program ends that communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/status.h"
#include "bindings/nccl/core.h"

namespace braid::nccl {

/// Threads: any.
class RealCalls {
 public:
  /// unavailable when shut; unsupported when NCCL refuses the call.
  Status run(const braid_nccl_real& real, const braid_nccl_call& call);
  /// Collective. As run(), and timeout when NCCL does not come to an end with it: it may yet use the
  /// memory, whatever becomes of the communicator. A window that NCCL has no use for is refused.
  Result<void*> open_window(const braid_nccl_real& real, void* memory, uint64_t bytes);
  /// Not when shut: windows end with their communicator.
  void close_window(const braid_nccl_real& real, void* window);
  /// No call begins any longer. Waits a moment for one that is under way; not for ever, because it
  /// may be one that only the end of the communicator ends.
  void shut();
  bool is_shut() const { return is_shut_; }

 private:
  template <typename Call>
  Result<int> through(const Call& call);

  std::mutex mutex_;
  std::atomic<bool> is_shut_{false}, is_inside_{false};
};

}  // namespace braid::nccl
