// RunTimeBalance: stage 2 on rank 0. It is fed what every rank measured in finished calls, keeps
// one plan::Balancer per (operation, size class), and turns decisions into share updates for the
// next entry.
//
// Threads: the comm's lock; used on rank 0 only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/share_book.h"
#include "fabric/types.h"
#include "plan/balance.h"
#include "plan/plan.h"

namespace braid::comm {

/// What the entries of one call said: who sees which links up, and how the call before went on
/// every rank.
struct Observation {
  struct Link {
    uint64_t bytes = 0;
    int64_t finish_ns = 0;
  };
  struct Report {
    uint64_t epoch = 0;
    std::vector<Link> links;
  };
  uint64_t up_mask = ~uint64_t{0};
  plan::Plan report_plan;       // the plan that the reported call used
  std::vector<Report> reports;  // from the ranks that had one
};

class RunTimeBalance {
 public:
  /// `window_calls` calls per decision; disabled: link loss and return are still followed.
  void configure(bool enabled, int window_calls, std::vector<fabric::Link> links, int num_ranks);
  void observe(const Observation& seen);
  /// The decisions made since the last take, to hold from `from_epoch`.
  std::vector<ShareUpdate> take_updates(uint64_t from_epoch);
  /// Lines for the log, newest last; drained by the caller.
  std::vector<std::string> take_log();
  /// No more share moves until unfrozen (tuning, forced shares).
  void freeze(bool frozen) { frozen_ = frozen; }
  /// Forgets what was learned: the plans underneath have changed.
  void reset();

 private:
  using Key = std::pair<plan::Op, int>;
  void follow_links(uint64_t up_mask);
  void follow_shares(const Observation& seen);
  plan::Balancer& balancer_for(const plan::Plan& plan);

  bool enabled_ = true;
  bool frozen_ = false;
  int window_calls_ = 10;
  std::vector<fabric::Link> links_;
  int num_ranks_ = 1;
  uint64_t up_mask_ = ~uint64_t{0};
  std::map<Key, plan::Balancer> balancers_;
  std::vector<ShareUpdate> updates_;
  std::vector<std::string> log_;
};

}  // namespace braid::comm
