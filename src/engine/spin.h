// How long it is worth to look again and again for what will come soon, before sleeping: to be
// woken takes as long as a GPU takes for tens of MiB. Where there are few processors, whoever spins
// is in the way of who has something to do.
#pragma once

#include <cstdint>
#include <thread>

namespace braid::engine {

inline int64_t long_spin_ns() {
  constexpr unsigned kFewProcessors = 3;
  static const int64_t found =
      std::thread::hardware_concurrency() <= kFewProcessors ? 20'000 : 1'000'000;
  return found;
}

}  // namespace braid::engine
