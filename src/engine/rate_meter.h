// How fast a rail is while it has something to do: bytes that completed over the time in which
// something was outstanding.
//
// Threads: one.
#pragma once

#include <cstdint>

namespace braid::engine {

class RateMeter {
 public:
  /// Something is outstanding from `now` on; nothing was before.
  void begin(int64_t now) { since_ns_ = now; }
  /// `bytes` completed; when nothing is outstanding any more, end() follows.
  void completed(uint64_t bytes, int64_t now) {
    bytes_ += bytes;
    if (now - since_ns_ >= kWindowNs) settle(now);
  }
  void end(int64_t now) {
    if (now - since_ns_ >= kLeastNs) settle(now);
    bytes_ = 0;
  }
  /// Bytes per ns; 0 before anything was measured.
  double rate() const { return rate_; }

 private:
  // Long enough to see past one burst of completions, short enough to follow a link that slows.
  static constexpr int64_t kWindowNs = 5'000'000;
  static constexpr int64_t kLeastNs = 200'000;
  // A sample counts by its length: a link that is held to its rate by a bucket lets the first bytes
  // after a pause through at once, and a few such moments must not pass for its rate.
  static constexpr double kMemoryNs = 15e6;

  void settle(int64_t now) {
    const auto length_ns = static_cast<double>(now - since_ns_);
    const double sample = static_cast<double>(bytes_) / length_ns;
    const double weight = rate_ == 0 ? 1 : length_ns / (length_ns + kMemoryNs);
    rate_ += weight * (sample - rate_);
    bytes_ = 0;
    since_ns_ = now;
  }

  int64_t since_ns_ = 0;
  uint64_t bytes_ = 0;
  double rate_ = 0;
};

}  // namespace braid::engine
