#include "sys/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace braid::sys {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "the kernel reads the bare word");

bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) noexcept {
  if (deadline.passed()) return false;
  const int64_t at = deadline.at_ns();
  const timespec until{static_cast<time_t>(at / 1'000'000'000),
                       static_cast<long>(at % 1'000'000'000)};
  // FUTEX_WAIT_BITSET, because its timeout is a point on CLOCK_MONOTONIC and not a length; no
  // PRIVATE flag, because the sleeper and the waker map the word at different addresses.
  const long rc = ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &until, nullptr,
                            FUTEX_BITSET_MATCH_ANY);
  return !(rc != 0 && errno == ETIMEDOUT);
}

int futex_wake(const std::atomic<uint32_t>& word, int count) noexcept {
  const long rc = ::syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0);
  return rc < 0 ? 0 : static_cast<int>(rc);
}

}  // namespace braid::sys
