// StepSearch: stage 1 of the balancer as a state machine, without a clock or a link of its own.
//
//   caller: run calls with shares(), take each link's median finish time, observe() it, until
//   done(); then best().
//
// A round moves share from the slowest link to the fastest: as much as would make the two finish
// together, but at most one step. When the two links of the move before come out the other way
// round, the step was too long and is halved. The search ends when all links finish within the
// tolerance, when the step is below its minimum, or after max_rounds; it cannot run for ever. Best
// is the round whose last link finished first, wherever the search went after.
//
// A link without share takes no part. A link that does not finish (kLost) loses its share to the
// others for good.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace braid::plan {

struct SearchOptions {
  double first_step = 0.10;  // of the message
  // One cell of a large message is 1/64 or less of a block: finer steps move nothing.
  double min_step = 0.005;
  double tolerance = 0.03;   // done when (slowest - fastest) / slowest is no more
  double min_share = 0.005;  // a link that would fall below it is left out
  int max_rounds = 24;
};

class StepSearch {
 public:
  static constexpr int64_t kLost = -1;

  /// Starts from `start` (sum kWhole, one per link); `names` are for the log.
  StepSearch(Shares start, std::vector<std::string> names, const SearchOptions& options = {});

  bool done() const { return is_done_; }
  /// What to run next; the best when done.
  const Shares& shares() const { return shares_; }
  /// What shares() gave: per link the ns from start to its last byte, kLost when it never came;
  /// links without share are ignored. Does nothing when done.
  void observe(std::span<const int64_t> finish_ns);

  const Shares& best() const { return best_; }
  /// Time of the best round; 0 before the first.
  int64_t best_ns() const { return best_ns_; }
  int rounds() const { return rounds_; }
  /// What the last observe() did, one sentence.
  const std::string& why() const { return why_; }

 private:
  struct Extremes {
    size_t slowest = 0;
    size_t fastest = 0;
    int num_active = 0;
  };
  Extremes extremes(std::span<const int64_t> finish_ns) const;
  bool drop_lost(std::span<const int64_t> finish_ns);
  void remember(int64_t worst_ns);
  void halve_if_flipped(std::span<const int64_t> finish_ns);
  void move(const Extremes& now, std::span<const int64_t> finish_ns);
  void finish(std::string why);

  Shares shares_;
  std::vector<std::string> names_;
  SearchOptions options_;
  double step_;
  Shares best_;
  int64_t best_ns_ = 0;
  int rounds_ = 0;
  bool has_moved_ = false;
  size_t last_from_ = 0;
  size_t last_to_ = 0;
  bool is_done_ = false;
  std::string why_;
};

}  // namespace braid::plan
