#include "bindings/nccl/core/real_calls.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/units.h"

namespace braid::nccl {

namespace {

constexpr auto kDoorLook = std::chrono::microseconds(20);
constexpr int64_t kShutPatience = 200_ms;
constexpr int kInProgress = 7;  // ncclInProgress

}  // namespace

template <typename Call>
Result<int> RealCalls::through(const Call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (is_shut_) return unavailable("the communicator was broken off");
    is_inside_ = true;
  }
  const int result = call();
  is_inside_ = false;
  return result;
}

Status RealCalls::run(const braid_nccl_real& real, const braid_nccl_call& call) {
  BRAID_ASSIGN_OR_RETURN(const int result, through([&] { return real.run(real.context, &call); }));
  if (result != 0) return unsupported("NCCL answered {} to a call that was to be timed", result);
  return {};
}

Result<void*> RealCalls::open_window(const braid_nccl_real& real, void* memory, uint64_t bytes) {
  void* window = nullptr;
  BRAID_ASSIGN_OR_RETURN(const int result, through([&] {
                           return real.open_window(real.context, memory, bytes, &window);
                         }));
  if (result == kInProgress) return timeout("NCCL does not end with a window");
  if (result != 0) return unsupported("NCCL answered {} to a window", result);
  if (window == nullptr) return unsupported("NCCL has no use for a window");
  return window;
}

void RealCalls::close_window(const braid_nccl_real& real, void* window) {
  (void)through([&] { return real.close_window(real.context, window); });
}

void RealCalls::shut() {
  {
    const std::lock_guard lock(mutex_);
    is_shut_ = true;
  }
  const Deadline patience = Deadline::after_ns(kShutPatience);
  while (is_inside_ && !patience.passed()) std::this_thread::sleep_for(kDoorLook);
}

}  // namespace braid::nccl
