#include "engine/turn.h"

#include <chrono>
#include <thread>

#include "engine/worker.h"

namespace braid::engine {
namespace {
constexpr int64_t kYieldNs = 50'000, kNapNs = 20'000;
}  // namespace

void Turn::move_until(const std::function<bool()>& is_over, Deadline deadline) {
  if (!is_open() || is_lent_ || is_over()) return;
  bool is_worker_due = false;
  const int64_t began = now_ns();
  ++num_waiting_;
  while (!is_over() && !deadline.passed() && is_open_ && !is_lent_) {
    const std::unique_lock mine(mutex_, std::try_to_lock);
    if (!mine.owns_lock()) {
      // The worker is in the midst of a round, which is short but for what it copies.
      if (now_ns() - began < kYieldNs)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::nanoseconds(kNapNs));
      continue;
    }
    if (worker_ == nullptr) break;
    is_lent_ = true;
    is_worker_due = worker_->stand_in(is_over, deadline);
    is_lent_ = false;
    break;
  }
  --num_waiting_;
  // Without the mutex, which the worker only tries to take. It may have given its turn up for us
  // alone, in the midst of something: it looks at num_waiting_ once more behind saying so, so one of
  // both sees the other.
  if (is_rested_.exchange(false) || is_worker_due) call_.signal();
}

}  // namespace braid::engine
