// Balancer: stage 2 as a state machine, one per (operation, size class), on the rank that decides.
//
//   rank 0: after each call observe() what every link did (the slowest rank counts); a Decision
//           that comes back holds new shares, which the caller publishes with the epoch from which
//           they hold.
//
// Evaluator: calls are gathered into windows; a window's verdict is each link's median, so that one
// preempted call moves nothing. Times are taken per byte of the call, so that the sizes of one
// class can be mixed. Calls that still ran with older shares than the last decision's are not
// counted.
//
// Mover, once per window: share goes from the slowest link to the fastest, a part (gain) of what
// would make the two finish together, never more than max_move of the message.
//   dead-band    no move while (slowest - fastest) / slowest is within it, or within what the
//                scatter of the window's calls explains; narrower when the link with the largest
//                share is not the slowest, because giving it back share is always safe
//   hysteresis   a small imbalance must name the same slowest link in two windows running; a large
//                one moves at once (which link is fastest may change: with several level ones that
//                is chance, and any of them will do)
//   opening      the first windows after the start are short, and a small imbalance moves share at
//                once: shares come from the measurements of smaller messages, and most of what they
//                lack is seen in a few calls
//   floor        a link that would fall under min_share gets 0 instead: a sliver costs more than it
//                carries. It is probed again later with min_share, ever more seldom
//   never worse  when in two windows running the slowest link ends after the main link (the one
//                with the largest share) alone would have ended, it is cut at once to half the
//                share that its rate deserves; a link that keeps losing is halved to the floor and
//                so left out
//   trials       (option) a link that was left out is tried in single calls with a sliver, so that
//                a link that is still slow costs one call and not a window of them; it may come
//                back when that call took no longer, and how seldom it is tried follows from what a
//                trial costs (balance_trials.cc)
//   alarm        (option) in two calls running a link took several times what the main link alone
//                would have: it is cut at once, without the rest of the window (balance_trials.cc)
// Nothing moves while frozen. Links that are down have share 0 and get their old share back when
// they return.
//
// Threads: one at a time. No clock, no randomness: equal observations give equal decisions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace braid::plan {

struct BalanceOptions {
  int window_calls = 10;    // FlexLink's window
  int opening_windows = 0;  // how many windows at the start are of opening_calls
  int opening_calls = 3;
  double dead_band = 0.03;  // a median of 10 calls with 5 % scatter is uncertain by 2 %
  double eager_dead_band = 0.02;
  double large_imbalance = 0.20;  // acts without waiting for a second window
  double gain = 0.7;              // part of the computed move that is made: under 1 damps the loop
  double max_move = 0.04;         // of the message, per window
  double min_share = 0.01;
  // A link that fell to 0 is tried again after so many windows, then twice as many...
  int probe_windows = 32;
  int max_probe_windows = 1024;
  double trial_share = 0;     // over 0: probes are trials with so much, see above
  double trial_cost = 0.005;  // trials may cost this part of all calls
  double alarm_factor = 0;    // over 0: how many times as long is an alarm
  std::vector<double> most;   // per link: the part of a message that it can carry; empty: all
};

/// For calls that are enqueued long before they run, as a GPU's are: a decision holds late, so
/// nothing may be tried for longer than one call. Links under the 2 % rule are left out.
BalanceOptions options_for_enqueued_calls();

/// What one link did in one call, over all ranks.
struct LinkSample {
  uint64_t bytes = 0;     // carried, any consistent count (payload of all ranks, say)
  int64_t finish_ns = 0;  // latest over ranks; 0 when unused
};

struct Decision {
  Shares shares;          // sum kWhole
  std::string why;        // one line: "moved 1.2 % from staged to shm (9.80 ms against 8.10 ms)"
  bool is_trial = false;  // for one call; then the shares before it hold again
};

class Balancer {
 public:
  Balancer(Shares start, std::vector<std::string> link_names, const BalanceOptions& options = {});

  const Shares& shares() const { return shares_; }
  bool is_down(size_t link) const { return links_[link].is_down; }

  /// One call that ran with `used` shares, or with a trial's. A Decision when they change, or when
  /// a trial is to be made.
  std::optional<Decision> observe(const Shares& used, std::span<const LinkSample> samples);
  /// The link carries nothing from now on; its share goes to the others in proportion. No change
  /// when it is down already, or when it is the last one (then there is nowhere to go, and the
  /// caller must find out by its deadline).
  std::optional<Decision> link_down(size_t link);
  /// The link is back: it gets the share it had, and balancing goes on from there.
  std::optional<Decision> link_up(size_t link);

  void freeze(bool frozen) { is_frozen_ = frozen; }
  int windows() const { return windows_; }

 private:
  struct LinkState {
    std::string name;
    bool is_down = false;
    double weight_when_up = 0;  // its share beside the others' weights, kept while it is down
    int windows_idle = 0;       // up, but without share
    int windows_to_probe = 0;   // 0: never, it was left out by the plan
    std::vector<double> cost_samples;    // finish ns per byte of the call
    std::vector<double> weight_samples;  // part of the call's bytes that it carried
    double cost = 0;                     // medians of the window
    double weight = 0;
    double error = 0;          // standard error of `cost`
    bool is_measured = false;  // enough samples in this window
  };
  struct Trial {
    size_t link;
    Shares shares;
  };
  struct Extremes {
    size_t slowest = 0;
    size_t fastest = 0;
    size_t main = 0;
    int num_active = 0;
    double imbalance = 0;
  };

  void start_window();
  bool is_opening() const { return windows_ < options_.opening_windows; }
  int window_calls() const;
  void add_samples(std::span<const LinkSample> samples, double call_bytes);
  std::optional<Decision> close_window();
  Extremes measure();
  double noise(const Extremes& now) const;
  std::optional<Decision> back_off(const Extremes& now);
  std::optional<Decision> level(const Extremes& now);
  std::optional<Decision> probe();
  void leave_out(size_t link, double lost_calls);
  double lost_in_trial(size_t link, size_t other) const;
  std::optional<Decision> try_link(size_t link);
  std::optional<Decision> judge_trial(size_t tried, std::span<const LinkSample> samples);
  std::optional<Decision> alarm(std::span<const LinkSample> samples, double call_bytes);
  std::optional<Decision> bring_back(size_t link, double deserved);
  double most(size_t link) const { return options_.most.empty() ? 1 : options_.most[link]; }
  bool has_agreement(const Extremes& now);
  double move_size(const Extremes& now) const;
  double fraction(size_t link) const;
  std::vector<double> fractions() const;
  std::optional<Decision> shift(size_t from, size_t to, double part);
  std::optional<Decision> apply(const std::vector<double>& fractions, std::string why);
  std::optional<Decision> follow_weights(std::string why);
  std::string times(size_t late, size_t early) const;

  Shares shares_;
  std::vector<LinkState> links_;
  BalanceOptions options_;
  bool is_frozen_ = false;
  int calls_ = 0;
  int windows_ = 0;  // closed since the start
  std::vector<double> call_bytes_;
  double median_call_bytes_ = 0;
  int agreeing_windows_ = 0;  // how many windows running named the same slowest link
  size_t last_slowest_ = 0;
  // How many windows running the slowest link was worse than the main link alone.
  int losing_windows_ = 0;
  int alarming_calls_ = 0;  // how many running named alarming_link_
  size_t alarming_link_ = 0;
  std::optional<Trial> trial_;  // decided, and not yet seen
};

}  // namespace braid::plan
