// How long it is worth to look again and again for what will come soon, before sleeping: to be
// woken takes as long as a GPU takes for tens of MiB. Where there are few processors, whoever spins
// is in the way of who has something to do.
#pragma once

#include <cstdint>
#include <thread>

namespace braid::engine {

inline bool has_few_processors() {
  constexpr unsigned kFew = 3;
  static const bool found = std::thread::hardware_concurrency() <= kFew;
  return found;
}

inline int64_t long_spin_ns() { return has_few_processors() ? 20'000 : 1'000'000; }

/// How long a worker spins after something has moved. On a host of two processors each write takes
/// three threads, and one that spins holds up the one that waits for the write.
inline int64_t short_spin_ns() { return has_few_processors() ? 5'000 : 50'000; }

}  // namespace braid::engine
