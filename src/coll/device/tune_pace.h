// How long tuning goes on, and when it is given up: on a GPU that other programs use, too, every
// call waits for its turn, so that measuring takes minutes and tells of the turns. With 16 programs
// on two H200 a call of 0.1 ms took 30, and none had been tuned after four minutes and a half.
//
// Facts only, and the same on all ranks: times are those of the slowest rank, which all are told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace braid::coll::device {

/// `time_ns` cut into `num_parts`. What a part leaves over falls to those behind it; one that was
/// not counted takes from them.
class TunePace {
 public:
  TunePace(int64_t time_ns, int num_parts) : time_ns_(time_ns), parts_left_(num_parts) {}

  /// Tells it the time since tuning began.
  void saw(int64_t elapsed_ns) { elapsed_ns_ = std::max(elapsed_ns_, elapsed_ns); }
  int64_t elapsed_ns() const { return elapsed_ns_; }

  /// What comes now may take so many parts of those that are left.
  void begin(int parts) {
    const int64_t left_ns = std::max<int64_t>(time_ns_ - elapsed_ns_, 0);
    until_ns_ = elapsed_ns_ + left_ns / std::max(parts_left_, parts) * parts;
    skip(parts);
  }
  /// So many parts are not needed.
  void skip(int parts) { parts_left_ = std::max(parts_left_ - parts, 0); }
  bool has_time() const { return elapsed_ns_ < until_ns_; }
  bool is_over() const { return elapsed_ns_ >= time_ns_; }

 private:
  const int64_t time_ns_;
  int64_t elapsed_ns_ = 0;
  int64_t until_ns_ = 0;
  int parts_left_;
};

inline double median_of(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<long>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Whether equal calls took so different times that half of them were not alone: the median is
/// more than `most_spread` times the least. Of one time or more. Alone on 2, 4 and 8 H200, in a
/// machine that others used, it was 1.33 times that at most (346 series of flexlink_*.json).
inline bool is_disturbed(const std::vector<double>& times, double most_spread) {
  return median_of(times) > most_spread * *std::min_element(times.begin(), times.end());
}

/// Whether a share over the link may have brought so much: without it NVLink has all of a
/// message to carry, with it the rest, and is no faster for that. In 69 pairs of series that were
/// measured alone a call with a share took 0.98 times the rest of the time without at least.
inline bool is_possible(double alone_us, double share, double with_share_us, double least_of_rest) {
  return with_share_us >= least_of_rest * (1 - share) * alone_us;
}

}  // namespace braid::coll::device
