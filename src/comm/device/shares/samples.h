// Samples: what every rank measured in sampled calls, for rank 0 to look at when it likes.
//
// One ring per rank in shared memory; sample n (the same call on all ranks) lies in place n % kKept
// of each. A place is written by its rank alone: its number is cleared, the times are written, then
// the number with release order. A reader takes the number with acquire order, the times, and the
// number once more: a sample that was overwritten meanwhile is no sample. Nobody waits; a sample
// that comes too late, or never, is one that rank 0 does without.
//
// Threads: one at a time in every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace braid::comm {

/// When this rank's part over each link was done, from the moment that all ranks were there; 0 for
/// a link that had none.
struct CallTimes {
  int64_t base_ns = 0;
  int64_t beside_ns = 0;
};

class Samples {
 public:
  static constexpr uint64_t kKept = 64;
  struct Place {
    uint64_t number;
    int64_t base_ns, beside_ns;
  };
  /// What lies in every rank's segment, all zero at first.
  struct Pages {
    alignas(128) Place places[kKept];
  };

  Samples(int rank, std::vector<Pages*> pages) : rank_(rank), pages_(std::move(pages)) {}

  /// Numbers count from 1.
  void publish(uint64_t number, const CallTimes& times);
  /// Of one rank; nothing when it is not there (yet, or any more).
  std::optional<CallTimes> of(int rank, uint64_t number) const;
  /// Each link's latest time over all ranks, when all are there.
  std::optional<CallTimes> of_all(uint64_t number) const;

 private:
  const int rank_;
  const std::vector<Pages*> pages_;
};

}  // namespace braid::comm
