// ShareBalance: stage 2 on GPUs. While calls run, it follows what a link can carry beside the base
// link.
//
//   facts      every few calls of an (operation, size class) each rank's streams are timed by
//              events (stopwatch.h), and what they said is put where all ranks see it (samples.h)
//   decision   rank 0 feeds plan::Balancer, one per (operation, size class), when a sample of all
//              ranks is there
//   agreement  its change gets the first call that no rank has come to yet (epoch_log.h)
//   motion     from that call on all ranks cut their blocks by it (share_table.h)
//
// No step waits for the GPU or for another rank, and none is on a path that does not use the
// link: calls by packets or direct kernels, and operations whose tuned share is 0, are not counted.
//
// Calls of a comm come in the same order on all ranks, so each counts alike. Calls that are being
// captured are not counted and change nothing: they take the shares in force, and since a graph's
// copies have their sizes baked in, it keeps them. All ranks must therefore capture a call at the
// same place among their eager ones, as NCCL asks too.
//
// Threads: as comm::Device; summary() by any.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "comm/device/shares/epoch_log.h"
#include "comm/device/shares/samples.h"
#include "comm/device/shares/share_change.h"
#include "comm/device/shares/share_table.h"
#include "comm/device/shares/stopwatch.h"
#include "group/group.h"
#include "plan/balance.h"
#include "transport/host/segments.h"

namespace braid::comm {

/// A link beside whose shares are balanced, and the one it is beside of.
struct BalancedLink {
  ShareTable& shares;  // outlives the balance
  std::string base_name, name;
};

/// A call that may use the link, as all ranks see it.
struct BalancedCall {
  plan::Op op;
  uint64_t bytes = 0;       // that the share is asked about
  uint64_t most_bytes = 0;  // that the link can carry of them
  bool is_captured = false;
  double used = 1;            // of the share that holds
  uint64_t num_segments = 1;  // of so many bytes, which run through: timed as one
};

class ShareBalance {
 public:
  struct Summary {
    uint64_t calls = 0, samples = 0, windows = 0, moves = 0, trials = 0;
    std::vector<ShareTable::Moved> moved;
  };

  /// Collective: all ranks get the same verdict. Null when the options switch balancing off, which
  /// they must do on all ranks. In the context of the GPU.
  static Result<std::unique_ptr<ShareBalance>> create(group::Group& group, const Config& config,
                                                      sys::Cuda& cuda, const BalancedLink& link,
                                                      Deadline deadline);

  /// Counts the call and makes what was decided hold. Errors: timeout (a rank is thousands of calls
  /// behind), the group's fate, driver.
  Status begin_call(const BalancedCall& call);
  Status mark(CallStage stage, sys::Stream stream) { return stopwatch_.mark(stage, stream); }
  void end_call();

  Summary summary() const;
  /// What rank 0 decided, in words, newest last; empties it.
  std::vector<std::string> take_log() { return std::exchange(log_, {}); }

 private:
  struct Pages {
    EpochLog::Pages epoch_log;
    Samples::Pages samples;
    alignas(128) uint64_t windows;  // rank 0's, for the summaries of all
  };
  /// What rank 0 knows of a sampled call.
  struct Sampled {
    uint64_t number, call;
    ShareKey key;
    uint64_t bytes, most_bytes, beside_bytes;
    uint32_t class_parts;  // the share in force for the class, or a trial's
    bool is_trial;
  };
  struct Decider {
    plan::Balancer balancer;
    uint64_t holds_from = 0;  // the call of its last change
  };
  /// Of one key, alike on all ranks.
  struct KeyState {
    uint64_t calls = 0;
    std::optional<uint32_t> trial_parts;  // of the next call
  };

  ShareBalance(group::Group& group, const Config& config, const BalancedLink& link,
               Stopwatch stopwatch, transport::Segments segments);
  std::vector<Pages*> pages() const;
  Status publish_readings();
  void decide();
  void judge(const Sampled& sampled, const CallTimes& latest);
  Decider& decider_of(const Sampled& sampled);
  plan::BalanceOptions options_for(const Sampled& sampled) const;
  void apply(const ShareChange& change);
  void sample(const BalancedCall& call);

  group::Group& group_;
  ShareTable& table_;
  const std::vector<std::string> names_;
  const int64_t timeout_ns_;
  const int window_calls_;
  const uint64_t sample_every_;
  transport::Segments segments_;
  EpochLog epoch_log_;
  Samples samples_;
  Stopwatch stopwatch_;
  std::map<ShareKey, KeyState> keys_;
  std::deque<Sampled> sampled_;           // rank 0, oldest first
  std::map<ShareKey, Decider> deciders_;  // rank 0
  std::vector<std::string> log_;
  std::atomic<uint64_t> num_calls_{0}, num_samples_{0}, num_moves_{0}, num_trials_{0};
};

}  // namespace braid::comm
