// Wall-clock deadlines. Every wait in braid has one, in release builds too; none counts spins or
// cycles.
#pragma once

#include <cstdint>

namespace braid {

/// Nanoseconds of CLOCK_MONOTONIC: comparable between processes of one machine, not between
/// machines.
int64_t now_ns() noexcept;

class Deadline {
 public:
  /// A deadline `timeout_ns` from now; negative or zero has passed already.
  static Deadline after_ns(int64_t timeout_ns) noexcept { return Deadline(now_ns() + timeout_ns); }
  static Deadline at_ns(int64_t at_ns) noexcept { return Deadline(at_ns); }

  bool passed() const noexcept { return now_ns() >= at_ns_; }
  /// Nanoseconds left, never negative.
  int64_t left_ns() const noexcept;
  int64_t at_ns() const noexcept { return at_ns_; }

 private:
  explicit Deadline(int64_t at_ns) noexcept : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace braid
