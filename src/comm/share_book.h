// ShareBook: which shares hold for which call, on every rank alike.
//
// Rank 0 decides, everyone follows. A decision travels in the entry piece that rank 0 sends to
// every peer at the start of call k and holds from call k + 1. A rank cannot finish call k without
// that entry, so it cannot start call k + 1 without the decision: no rank ever uses other shares
// than its peers in the same call, and no acknowledgement is needed. Shares are kept per
// (operation, size class); links that are down are a mask beside them, so that a link that returns
// finds the share it had.
//
// Threads: the comm's lock.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace braid::comm {

/// One decision of rank 0. With `has_shares`: new shares for (op, size_class). Always: the links
/// that are up.
struct ShareUpdate {
  uint64_t from_epoch = 0;
  uint64_t up_mask = ~uint64_t{0};
  bool has_shares = false;
  plan::Op op = plan::Op::kAllGather;
  int size_class = 0;
  plan::Shares shares;
};

class ShareBook {
 public:
  /// Remembers an update; apply_until() makes it hold. Of two for one key and epoch the later one
  /// wins, so an entry's updates are learned once, in their order.
  void learn(const ShareUpdate& update);
  /// Makes every update with from_epoch <= epoch hold.
  void apply_until(uint64_t epoch);
  /// Shares for this key, starting from `planned` when none were decided, without the links that
  /// are down. A message whose every planned link is down goes evenly over the links that are up.
  plan::Shares effective(plan::Op op, int size_class, const plan::Shares& planned) const;
  /// The decided shares without regard to links that are down; `planned` when none were decided.
  plan::Shares decided(plan::Op op, int size_class, const plan::Shares& planned) const;
  uint64_t up_mask() const { return up_mask_; }
  void clear_decisions() { decided_.clear(); }

 private:
  using Key = std::pair<plan::Op, int>;
  std::map<Key, plan::Shares> decided_;
  std::vector<ShareUpdate> pending_;
  uint64_t up_mask_ = ~uint64_t{0};
};

/// `shares` with the links outside `up_mask` set to 0 and the rest scaled to sum kWhole exactly;
/// deterministic.
plan::Shares without_links(const plan::Shares& shares, uint64_t up_mask);

}  // namespace braid::comm
