// Trouble: what a device looks at all the time, and what it says of what it finds.
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/device/device.h"
#include "comm/device/trouble.h"

namespace braid::comm {

Status Device::status() const {
  const std::lock_guard lock(trouble_mutex_);
  return trouble_;
}

Status Device::look_for_trouble() {
  const auto code = std::atomic_ref(page_->trouble.code).load(std::memory_order_acquire);
  if (code == 2) return in_words(page_->trouble);
  if (state_.group->broken()) return state_.group->fate();
  return rdma_trouble();
}

// A dead process breaks its connections before the group tells of it, which is the better reason.
Status Device::rdma_trouble() {
  constexpr int64_t kNewsFirstNs = 100'000'000;
  const Status found = rdma_->status();
  if (found.ok()) return {};
  const int64_t this_ns = now_ns();
  int64_t failed_ns = 0;  // the watch and the caller may both be the first to see it
  if (rdma_failed_ns_.compare_exchange_strong(failed_ns, this_ns)) failed_ns = this_ns;
  return this_ns - failed_ns >= kNewsFirstNs ? found : Status();
}

// A page of host memory and a flag, a thousand times a second: far below a percent of a core.
void Device::watch() {
  constexpr auto kLookEvery = std::chrono::milliseconds(1);
  log::set_rank(rank());
  for (; !must_stop_; std::this_thread::sleep_for(kLookEvery)) {
    Status found = look_for_trouble();
    if (found.ok()) continue;
    std::atomic_ref(page_->must_abort).store(1);
    log::error("comm", "gpu {}: {}", ordinal_, found.message());
    state_.group->report(found);
    const std::lock_guard lock(trouble_mutex_);
    trouble_ = std::move(found);
    return;
  }
}

}  // namespace braid::comm
