// One measured round of stage 1: the same collective a few times with given shares, and what all
// ranks agree it gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "comm/comm.h"
#include "plan/plan.h"

namespace braid::coll {

/// Lower quartiles (of few repeats the median) of the maxima over the ranks: equal on every rank, so
/// that every rank decides alike. What disturbs a call only makes it longer, so the shorter ones tell
/// the link; the very shortest of many may have been lucky.
struct Round {
  int64_t duration_ns = 0;
  std::vector<int64_t> finish_ns;  // per link; 0 when it carried nothing
  int64_t elapsed_ns = 0;          // since `since_ns` of the slowest rank's clock
};

/// Buffers for the largest message that is measured, touched once.
class Workload {
 public:
  Workload(comm::Comm& comm, uint64_t most_bytes);
  /// Runs `op` over `bytes` (as plan::Request counts) `repeats` times with `shares`, after one call
  /// that is not counted when `is_first`. Collective.
  Result<Round> measure(plan::Op op, uint64_t bytes, const plan::Shares& shares, int repeats,
                        bool is_first, int64_t since_ns);

 private:
  Status run_once(plan::Op op, uint64_t bytes);
  comm::Comm& comm_;
  std::vector<std::byte> send_;
  std::vector<std::byte> recv_;
};

}  // namespace braid::coll
