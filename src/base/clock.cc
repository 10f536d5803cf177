#include "base/clock.h"

#include <ctime>

namespace braid {

int64_t now_ns() noexcept {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

int64_t Deadline::left_ns() const noexcept {
  const int64_t left = at_ns_ - now_ns();
  return left > 0 ? left : 0;
}

}  // namespace braid
