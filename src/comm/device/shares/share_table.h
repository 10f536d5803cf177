// ShareTable: how much of a GPU message a link beside carries in the next call. Facts only: what
// tuning found per operation, and what was decided since per (operation, size class).
//
// Equal calls in equal order leave equal tables on all ranks: nothing here depends on a clock, an
// address or a measurement of this rank alone.
//
// Threads: any; health() looks while calls are made.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/shares/tuned_share.h"
#include "plan/plan.h"

namespace braid::comm {

/// The unit of decisions. Bytes are those that shares are asked about: a block, or the buffer
/// of all_reduce and broadcast.
struct ShareKey {
  plan::Op op = plan::Op::kAllGather;
  int size_class = 0;
  friend auto operator<=>(const ShareKey&, const ShareKey&) = default;
};

class ShareTable {
 public:
  struct Moved {
    ShareKey key;
    uint32_t tuned = 0, now = 0;  // of the largest message of the class, in parts of plan::kWhole
    uint64_t moves = 0;
  };

  /// What tuning found; what was decided for the operation is forgotten.
  void set_tuned(plan::Op op, const TunedShare& share);
  void set_tuned(plan::Op op, double of_all) { set_tuned(op, {0, 0, of_all, of_all}); }
  TunedShare tuned(plan::Op op) const;
  /// One share for all sizes, which no decision moves; nothing: the tuned ones again.
  void force(plan::Op op, std::optional<double> share);

  /// In parts of plan::kWhole, for a message of `bytes` in the next call. Inside a class a decided
  /// share varies with the size as the tuned one does.
  uint32_t parts(plan::Op op, uint64_t bytes) const;
  /// Of the largest message of the class: what decisions are about.
  uint32_t class_parts(const ShareKey& key) const;
  /// False where the link is forced, or carries nothing and never did.
  bool can_move(const ShareKey& key) const;
  void move(const ShareKey& key, uint32_t parts);
  /// Other shares for the calls of `key` until this is called again.
  void set_trial(std::optional<ShareKey> key, uint32_t parts = 0);
  std::vector<Moved> moved() const;

 private:
  struct Decided {
    uint32_t parts = 0;
    uint64_t moves = 0;
  };
  uint32_t tuned_parts(plan::Op op, uint64_t bytes) const;
  uint32_t in_force(const ShareKey& key) const;

  mutable std::mutex mutex_;
  TunedShare tuned_[plan::kNumOps] = {};
  std::optional<double> forced_[plan::kNumOps];
  std::map<ShareKey, Decided> decided_;
  std::optional<ShareKey> trial_;
  uint32_t trial_parts_ = 0;
};

inline ShareKey share_key(plan::Op op, uint64_t bytes) { return {op, plan::size_class(bytes)}; }
/// The largest message of a size class.
constexpr uint64_t most_bytes_of(int size_class) {
  return uint64_t{1} << (size_class < 63 ? size_class : 63);
}

}  // namespace braid::comm
