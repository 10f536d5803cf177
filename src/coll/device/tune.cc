#include "coll/device/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "coll/device/call_timer.h"
#include "coll/device/tune_pace.h"

namespace braid::coll::device {

namespace {

// The first pass; the second looks around the best of it.
constexpr double kShares[] = {0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25};
constexpr double kSteps[] = {-0.02, -0.01, 0.01, 0.02, 0.03};
static_assert(std::end(kShares)[-1] + std::end(kSteps)[-1] <= kMostTunedShare);
// Of a link beside what those before it carry; as far as they have room together.
constexpr double kSharesBeside[] = {0, 0.02, 0.04, 0.08, 0.12};
// What seven rounds can tell from chance. With three rounds and 2 % an all-gather of 128 MiB that
// gains 4 % was left without the host link in one start of three (2 H200).
constexpr double kLeastGain = 0.01;
// Of times that differ by less the smaller share is taken. Beyond the best share a call is soon
// much longer (an all-gather among 8 H200: 5 % 2,337 us, 7 % 2,996), and the host link, which
// others use too, is not always as fast as while it was measured.
// With half a percent, and half as many rounds, a suite's all-reduce of 256 MiB got 5 %: 682 us,
// where 7 % takes 673 (2 H200).
constexpr double kAsGood = 0.003;
constexpr int kFineRounds = 2;  // for each of the first pass
// Timed ones, before a pass may end for want of time.
constexpr int kLeastRounds = 3;
// What the time is cut into: the first pass of a size gets as many parts as the size has bytes, the
// second as many times more as it has rounds for each of the first's.
constexpr int kShort = 1, kLong = 4;
constexpr int kPartsOfOp = (kShort + kLong) * (1 + kFineRounds);
// Half a second for others to be through.
constexpr int kMostLooks = 6;
constexpr std::chrono::milliseconds kBetweenLooks{100};

struct Tried {
  double share;
  std::vector<double> times_us;
  double median_us() const { return median_of(times_us); }
};

const Tried& best_of(const std::vector<Tried>& tried) {
  return *std::ranges::min_element(tried, {}, &Tried::median_us);
}

/// Decides by what a CallTimer tells all ranks alike: so all decide the same.
class Tuner {
 public:
  Tuner(comm::Device& device, comm::DeviceLink& link, CallTimer& timer, const TuneWork& work,
        const TunePace& pace)
      : device_(device), link_(link), timer_(timer), work_(work), pace_(pace) {}

  /// kDone: set. Else the operation is left to NVLink alone.
  Result<TuneEnd> tune_by_size(plan::Op op) {
    const uint64_t short_bytes = work_.block_bytes / kLong;
    Chosen of_short, of_long;
    BRAID_ASSIGN_OR_RETURN(TuneEnd end, choose(op, short_bytes, kShort, &of_short));
    if (end == TuneEnd::kDone) {
      BRAID_ASSIGN_OR_RETURN(end, choose(op, work_.block_bytes, kLong, &of_long));
    }
    link_.shares().force(op, std::nullopt);
    if (end == TuneEnd::kDone) end = compare(of_short.alone_us, of_long.alone_us);
    if (end == TuneEnd::kDone) {
      BRAID_ASSIGN_OR_RETURN(end, look_around());
    }
    if (end == TuneEnd::kDone)
      link_.shares().set_tuned(op, {seen_bytes(op, short_bytes), seen_bytes(op, work_.block_bytes),
                                    of_short.share, of_long.share});
    return end;
  }

  /// Its share beside what the links before it carry by now; kDone or none.
  Result<TuneEnd> tune_one_size(plan::Op op) {
    comm::ShareTable& shares = link_.shares();
    std::vector<Tried> tried;
    for (const double share : kSharesBeside) tried.push_back({share, {}});
    BRAID_ASSIGN_OR_RETURN(TuneEnd end,
                           time_all(op, work_.block_bytes, tried, {work_.rounds, 1},
                                    [&](double share) { shares.set_tuned(op, share); }));
    shares.set_tuned(op, 0.0);
    if (end == TuneEnd::kDone) {
      BRAID_ASSIGN_OR_RETURN(end, look_around());
    }
    if (end != TuneEnd::kDone) return end;
    const Tried& best = best_of(tried);
    const double without_us = tried.front().median_us();
    if (best.median_us() < without_us * (1 - kLeastGain)) shares.set_tuned(op, best.share);
    log::info("coll", "gpu {}: {}: {:.1f} us without {}, {:.1f} us with {} % through it",
              device_.ordinal(), plan::op_name(op), without_us, link_.facts().name,
              best.median_us(), 100 * best.share);
    return end;
  }

  /// Looks around until nobody is there, some times: a program that starts, one of this job
  /// perhaps, is soon through.
  Result<TuneEnd> find_calm() {
    for (int looks = 1;; ++looks) {
      BRAID_ASSIGN_OR_RETURN(const TuneEnd end, look_around());
      if (end == TuneEnd::kDone || looks == kMostLooks || pace_.is_over()) return end;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  /// kDone: nobody else's kernels run on these GPUs just now. Else kDisturbed.
  Result<TuneEnd> look_around() {
    BRAID_ASSIGN_OR_RETURN(const int64_t pause_ns, timer_.longest_pause_ns());
    pace_.saw(timer_.elapsed_ns());
    if (pause_ns <= work_.most_pause_ns) return TuneEnd::kDone;
    disturbed_ = fmt::format("a GPU ran something else for {} us", pause_ns / 1000);
    return TuneEnd::kDisturbed;
  }

  /// After kDisturbed: by what.
  const std::string& disturbed() const { return disturbed_; }

 private:
  struct Rounds {
    int most;
    int parts;  // of the time
  };
  struct Chosen {
    double share = 0;
    double alone_us = 0;  // over NVLink alone
  };

  Result<TuneEnd> choose(plan::Op op, uint64_t block_bytes, int weight, Chosen* chosen) {
    // Not balanced: what is timed is this share's.
    const auto force = [&](double share) { link_.shares().force(op, share); };
    std::vector<Tried> tried;
    for (const double share : kShares) tried.push_back({share, {}});
    BRAID_ASSIGN_OR_RETURN(TuneEnd end,
                           time_all(op, block_bytes, tried, {work_.rounds, weight}, force));
    if (end != TuneEnd::kDone) return end;
    const double about = best_of(tried).share;
    const Rounds finer{kFineRounds * work_.rounds, kFineRounds * weight};
    if (about > 0) {
      tried = {{0, {}}, {about, {}}};
      for (const double step : kSteps)
        if (about + step > 0) tried.push_back({about + step, {}});
      BRAID_ASSIGN_OR_RETURN(end, time_all(op, block_bytes, tried, finer, force));
      if (end != TuneEnd::kDone) return end;
    } else {
      pace_.skip(finer.parts);
    }
    std::vector<TimedShare> timed;
    for (const Tried& one : tried) timed.push_back({one.share, one.median_us()});
    const double alone_us = timed.front().us;
    for (const TimedShare& one : timed)
      if (!is_possible(alone_us, one.share, one.us, work_.least_of_rest))
        return is_impossible(alone_us, one);
    const TimedShare best = least_good_share(timed);
    log::info("coll",
              "gpu {}: {} of {}: {:.1f} us over NVLink alone, {:.1f} us with {:.0f} % over {}",
              device_.ordinal(), plan::op_name(op), format_bytes(seen_bytes(op, block_bytes)),
              alone_us, best.us, 100 * best.share, link_.facts().name);
    *chosen = {best.us < alone_us * (1 - kLeastGain) ? best.share : 0, alone_us};
    return end;
  }

  /// As many rounds as there is time for, the least at least.
  Result<TuneEnd> time_all(plan::Op op, uint64_t block_bytes, std::vector<Tried>& tried,
                           const Rounds& rounds, const std::function<void(double)>& use) {
    pace_.begin(rounds.parts);
    for (int round = 0; round < rounds.most; ++round) {
      const bool are_enough = round > kLeastRounds;
      if (are_enough && !pace_.has_time()) break;
      for (Tried& one : tried) {
        use(one.share);
        BRAID_ASSIGN_OR_RETURN(const double slowest_us, timer_.time(op, block_bytes));
        pace_.saw(timer_.elapsed_ns());
        if (round > 0) one.times_us.push_back(slowest_us);
        if (!are_enough && pace_.is_over()) return why_over(tried.front());
      }
    }
    return judge(tried.front());
  }

  /// Of the times over NVLink alone.
  TuneEnd judge(const Tried& alone) {
    if (!is_disturbed(alone.times_us, work_.most_spread)) return TuneEnd::kDone;
    disturbed_ = fmt::format("equal calls took {:.0f} and {:.0f} us",
                             *std::ranges::min_element(alone.times_us), alone.median_us());
    return TuneEnd::kDisturbed;
  }

  /// The machine is slow, or it is not ours alone.
  Result<TuneEnd> why_over(const Tried& alone) {
    if (!alone.times_us.empty() && judge(alone) != TuneEnd::kDone) return TuneEnd::kDisturbed;
    BRAID_ASSIGN_OR_RETURN(const TuneEnd end, look_around());
    return end == TuneEnd::kDone ? TuneEnd::kTimeOver : end;
  }

  /// Calls that wait for their turn take as long whatever they carry, and each time.
  TuneEnd compare(double short_us, double long_us) {
    if (short_us <= work_.most_short_part * long_us) return TuneEnd::kDone;
    disturbed_ =
        fmt::format("a quarter of a message took {:.0f} us, all of it {:.0f}", short_us, long_us);
    return TuneEnd::kDisturbed;
  }

  TuneEnd is_impossible(double alone_us, const TimedShare& one) {
    disturbed_ = fmt::format("{:.0f} us over NVLink alone, {:.0f} us with {:.0f} % elsewhere",
                             alone_us, one.us, 100 * one.share);
    return TuneEnd::kDisturbed;
  }

  comm::Device& device_;
  comm::DeviceLink& link_;
  CallTimer& timer_;
  const TuneWork work_;
  TunePace pace_;
  std::string disturbed_;
};

/// What is tuned beside what is there already.
struct Subject {
  comm::DeviceLink& link;
  std::vector<plan::Op> ops;
  int parts_of_op;
  Result<TuneEnd> (Tuner::*tune)(plan::Op);
};

/// The least of what the ranks have, so that all end together; nothing where one has no memory.
Result<std::optional<int64_t>> agreed_time_ns(comm::Device& device, group::Group& group,
                                              Deadline deadline, const Status& ready,
                                              int64_t time_ns) {
  const std::string own = ready.ok() ? fmt::format("{}", time_ns) : ready.to_string();
  BRAID_ASSIGN_OR_RETURN(const auto texts, group.exchange("gpu tuning memory", own, deadline));
  int64_t least_ns = time_ns;
  for (const std::string& text : texts) {
    int64_t ns = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), ns).ec != std::errc()) {
      log::info("coll", "gpu {}: no memory to tune with, NVLink alone is used: {}",
                device.ordinal(), text);
      return std::optional<int64_t>();
    }
    least_ns = std::min(least_ns, ns);
  }
  return std::optional(least_ns);
}

void tell(const Subject& subject, TuneEnd end, const Tuner& tuner, int64_t elapsed_ns,
          size_t num_done) {
  const double seconds = static_cast<double>(elapsed_ns) / 1e9;
  if (end == TuneEnd::kDisturbed)
    return log::warn("coll",
                     "tuning of {} was given up after {:.1f} s: {}: other work on these GPUs; it "
                     "carries nothing where that was not measured, and nothing is kept",
                     subject.link.facts().name, seconds, tuner.disturbed());
  log::warn("coll",
            "tuning of {} ended after {:.1f} s (BRAID_TUNE_TIME) with {} of {} operations "
            "measured; it carries nothing of the others, which more time measures",
            subject.link.facts().name, seconds, num_done, subject.ops.size());
}

Result<TuneEnd> tune_all(comm::Device& device, group::Group& group, Deadline deadline,
                         const TuneWork& work, const Subject& subject) {
  CallTimer timer(device, group, deadline, work.block_bytes);
  const Status ready = timer.prepare();
  BRAID_ASSIGN_OR_RETURN(const auto time_ns,
                         agreed_time_ns(device, group, deadline, ready, work.time_ns));
  if (!time_ns) return TuneEnd::kNoMemory;
  const int num_parts = subject.parts_of_op * static_cast<int>(subject.ops.size());
  Tuner tuner(device, subject.link, timer, work, {*time_ns, num_parts});
  BRAID_RETURN_IF_ERROR(timer.open());
  TuneEnd end = TuneEnd::kDone;
  size_t num_done = 0;
  bool may_repeat = true;  // one operation, once: others come and go
  while (num_done < subject.ops.size()) {
    BRAID_ASSIGN_OR_RETURN(end, tuner.find_calm());
    if (end != TuneEnd::kDone) break;
    BRAID_ASSIGN_OR_RETURN(end, (tuner.*subject.tune)(subject.ops[num_done]));
    num_done += end == TuneEnd::kDone ? 1 : 0;
    if (end == TuneEnd::kDone) continue;
    if (end != TuneEnd::kDisturbed || !std::exchange(may_repeat, false)) break;
  }
  BRAID_RETURN_IF_ERROR(timer.close());
  if (end != TuneEnd::kDone && device.rank() == 0)
    tell(subject, end, tuner, timer.elapsed_ns(), num_done);
  return end;
}

}  // namespace

TimedShare least_good_share(std::span<const TimedShare> timed) {
  const auto us = [](const TimedShare& one) { return one.us; };
  const double best_us = std::ranges::min(timed, {}, us).us;
  TimedShare chosen{2, best_us};
  for (const TimedShare& one : timed)
    if (one.us <= best_us * (1 + kAsGood) && one.share < chosen.share) chosen = one;
  return chosen;
}

Result<TuneEnd> tune_shares(comm::Device& device, comm::DeviceLink& link, group::Group& group,
                            Deadline deadline, const TuneWork& work) {
  std::vector<plan::Op> ops;
  for (const plan::Op op : plan::kAllOps)
    if (link.can_carry(op)) ops.push_back(op);
  switch (link.tuning()) {
    case comm::LinkTuning::kNone: break;
    case comm::LinkTuning::kBySize:
      return tune_all(device, group, deadline, work, {link, ops, kPartsOfOp, &Tuner::tune_by_size});
    case comm::LinkTuning::kOneSize:
      return tune_all(device, group, deadline, work, {link, ops, 1, &Tuner::tune_one_size});
  }
  return TuneEnd::kDone;
}

}  // namespace braid::coll::device
