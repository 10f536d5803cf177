// BRAID_TUNE_TIME as the races of one communicator share it. Equal on all ranks: what a race took is
// what all were told.
#pragma once

#include <algorithm>
#include <cstdint>

namespace braid::nccl {

/// In a node each race may take half of what is left: most take a tenth of a second, and nobody knows
/// how many will come. Over nodes four can come, of all_gather and reduce_scatter small and large, and
/// pauses between calls take most of their time (race_track.h). There each may take its part of what is
/// left: by halves reduce_scatters of 512 KiB and more were NCCL's for want of time (docs/measured/nodes.md).
class RaceBudget {
 public:
  explicit RaceBudget(int64_t all_ns) : left_ns_(all_ns) {}
  /// Before the first race. Twice the time, for heats that one node has not.
  void go_over_nodes() {
    left_ns_ *= 2;
    parts_ = 4;
    is_by_parts_ = true;
  }
  int64_t next_ns() const { return left_ns_ / parts_; }
  void took(int64_t ns) {
    left_ns_ -= std::min(ns, left_ns_);
    if (is_by_parts_) parts_ = std::max(parts_ - 1, 1);
  }

 private:
  int64_t left_ns_;
  int parts_ = 2;
  bool is_by_parts_ = false;
};

}  // namespace braid::nccl
