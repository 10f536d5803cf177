#include "coll/device/tune.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/tune_pace.h"
#include "sys/cuda/owned.h"

namespace braid::coll::device {

namespace {

// The first pass; the second looks around the best of it.
constexpr double kShares[] = {0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25};
constexpr double kSteps[] = {-0.02, -0.01, 0.01, 0.02, 0.03};
static_assert(std::end(kShares)[-1] + std::end(kSteps)[-1] <= kMostTunedShare);
// Of the NIC, beside the host link's share; as far as the x16 has room for both.
constexpr double kRdmaShares[] = {0, 0.02, 0.04, 0.08, 0.12};
// In a row: one alone would also measure how fast the host enqueues it.
constexpr int kCalls = 3;
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
// What a share of the time is cut into: the first pass gets one part, the second as many as it has
// rounds for each of the first's.
constexpr int kPartsOfOne = 1 + kFineRounds;
constexpr int kSizes = 2;  // of each operation

class Tuner {
 public:
  /// `num_parts` of time, as TunePace::begin() counts them.
  Tuner(comm::Device& device, group::Group& group, Deadline deadline, const TuneWork& work,
        int num_parts)
      : device_(device),
        group_(group),
        deadline_(deadline),
        work_(work),
        pace_(work.time_ns, num_parts) {}

  Status prepare() {
    sys::Cuda& cuda = device_.cuda();
    BRAID_ASSIGN_OR_RETURN(send_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes_of_all())));
    BRAID_ASSIGN_OR_RETURN(recv_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes_of_all())));
    BRAID_ASSIGN_OR_RETURN(stream_, sys::own<sys::OwnedStream>(
                                        cuda, cuda.create_stream(sys::StreamPriority::kNormal)));
    for (auto& event : events_) {
      BRAID_ASSIGN_OR_RETURN(
          event, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOn)));
    }
    return {};
  }

  /// Collective. Results land in place, as in the calls for which a percent counts.
  Status open() { return device_.register_memory(recv_.get(), bytes_of_all()); }
  Status close() { return device_.unregister_memory(recv_.get()); }

  /// False: given up.
  Result<bool> tune(plan::Op op) {
    BRAID_ASSIGN_OR_RETURN(const auto short_share, best_share(op, work_.block_bytes / 4));
    std::optional<double> long_share;
    if (short_share) {
      BRAID_ASSIGN_OR_RETURN(long_share, best_share(op, work_.block_bytes));
    }
    device_.force_host_share(op, std::nullopt);
    if (!long_share) return false;
    device_.set_host_share(op, {seen_bytes(op, work_.block_bytes / 4),
                                seen_bytes(op, work_.block_bytes), *short_share, *long_share});
    return true;
  }

  /// The NIC's share beside what the host link carries by now. False: given up.
  Result<bool> tune_rdma(plan::Op op) {
    comm::Rdma& rdma = device_.rdma();
    std::vector<Tried> tried;
    for (const double share : kRdmaShares) tried.push_back({share, {}});
    BRAID_ASSIGN_OR_RETURN(const bool is_timed,
                           time_all(op, work_.block_bytes, tried, {work_.rounds, 1},
                                    [&](double share) { rdma.set_share(op, share); }));
    rdma.set_share(op, 0);
    if (!is_timed || is_given_up(tried.front())) return false;
    const Tried& best = best_of(tried);
    const double without_us = tried.front().median_us();
    if (best.median_us() < without_us * (1 - kLeastGain)) rdma.set_share(op, best.share);
    log::info("coll", "gpu {}: {}: {:.1f} us without the NIC, {:.1f} us with {} % through it",
              device_.ordinal(), plan::op_name(op), without_us, best.median_us(), 100 * best.share);
    return true;
  }

  /// Of what was given up. "": the time was over.
  const std::string& disturbed() const { return disturbed_; }
  int64_t elapsed_ns() const { return pace_.elapsed_ns(); }

 private:
  uint64_t bytes_of_all() const {
    return work_.block_bytes * static_cast<uint64_t>(device_.size());
  }
  struct Tried {
    double share;
    std::vector<double> times_us;  // of the slowest rank
    double median_us() const { return median_of(times_us); }
  };
  struct Rounds {
    int most;
    int parts;  // of the time
  };
  static const Tried& best_of(const std::vector<Tried>& tried) {
    return *std::min_element(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
      return a.median_us() < b.median_us();
    });
  }

  static bool is_one_buffer(plan::Op op) {
    return op == plan::Op::kAllReduce || op == plan::Op::kBroadcast;
  }
  /// What host_part() is asked about: a block, or the buffer, which is two of them.
  static uint64_t seen_bytes(plan::Op op, uint64_t block_bytes) {
    return is_one_buffer(op) ? 2 * block_bytes : block_bytes;
  }

  /// Says so, once.
  bool is_given_up(const Tried& alone) {
    if (!is_disturbed(alone.times_us, work_.most_spread)) return false;
    disturbed_ = fmt::format("equal calls took {:.0f} and {:.0f} us: other work on these GPUs",
                             *std::ranges::min_element(alone.times_us), alone.median_us());
    return true;
  }

  /// Nothing: given up.
  Result<std::optional<double>> best_share(plan::Op op, uint64_t block_bytes) {
    // Not balanced: what is timed is this share's.
    const auto force = [&](double share) { device_.force_host_share(op, share); };
    std::vector<Tried> coarse;
    for (const double share : kShares) coarse.push_back({share, {}});
    BRAID_ASSIGN_OR_RETURN(bool is_timed,
                           time_all(op, block_bytes, coarse, {work_.rounds, 1}, force));
    if (!is_timed || is_given_up(coarse.front())) return std::optional<double>();
    const double about = best_of(coarse).share;
    std::vector<Tried> fine = {{0, {}}};
    if (about > 0) fine.push_back({about, {}});
    for (const double step : kSteps)
      if (about > 0 && about + step > 0) fine.push_back({about + step, {}});
    BRAID_ASSIGN_OR_RETURN(is_timed, time_all(op, block_bytes, fine,
                                              {kFineRounds * work_.rounds, kFineRounds}, force));
    if (!is_timed || is_given_up(fine.front())) return std::optional<double>();
    std::vector<TimedShare> timed;
    for (const Tried& one : fine) timed.push_back({one.share, one.median_us()});
    const TimedShare chosen = least_good_share(timed);
    const double alone_us = timed.front().us;
    log::info("coll",
              "gpu {}: {} of {}: {:.1f} us over NVLink alone, {:.1f} us with {:.0f} % over the "
              "host link",
              device_.ordinal(), plan::op_name(op), format_bytes(seen_bytes(op, block_bytes)),
              alone_us, chosen.us, 100 * chosen.share);
    return std::optional(chosen.us < alone_us * (1 - kLeastGain) ? chosen.share : 0);
  }

  /// As many rounds as there is time for. False: given up, for not even the least were done.
  Result<bool> time_all(plan::Op op, uint64_t block_bytes, std::vector<Tried>& tried,
                        const Rounds& rounds, const std::function<void(double)>& use) {
    pace_.begin(rounds.parts);
    for (int round = 0; round < rounds.most; ++round) {
      const bool are_enough = round > kLeastRounds;
      if (are_enough && !pace_.has_time()) break;
      for (Tried& one : tried) {
        use(one.share);
        BRAID_ASSIGN_OR_RETURN(const double own_us, time_calls(op, block_bytes));
        BRAID_ASSIGN_OR_RETURN(const double slowest_us, slowest(own_us));
        if (round > 0) one.times_us.push_back(slowest_us);
        if (!are_enough && pace_.is_over()) return false;
      }
    }
    return true;
  }

  Result<double> time_calls(plan::Op op, uint64_t block_bytes) {
    sys::Cuda& cuda = device_.cuda();
    const sys::Stream stream = stream_.get();
    // Ranks meet before the clock starts: otherwise the first to come measures its own waiting.
    BRAID_RETURN_IF_ERROR(barrier(device_, stream));
    BRAID_RETURN_IF_ERROR(cuda.record(events_[0].get(), stream));
    for (int call = 0; call < kCalls; ++call) BRAID_RETURN_IF_ERROR(run(op, block_bytes, stream));
    BRAID_RETURN_IF_ERROR(cuda.record(events_[1].get(), stream));
    BRAID_RETURN_IF_ERROR(cuda.synchronize(stream));
    BRAID_ASSIGN_OR_RETURN(const int64_t took_ns,
                           cuda.elapsed_ns(events_[0].get(), events_[1].get()));
    return static_cast<double>(took_ns) / 1e3 / kCalls;
  }

  Status run(plan::Op op, uint64_t block_bytes, sys::Stream stream) {
    const uint64_t floats = block_bytes / sizeof(float);
    const uint64_t buffer_floats = 2 * floats;
    switch (op) {
      case plan::Op::kAllGather:
        return all_gather(device_, send_.get(), recv_.get(), floats, Dtype::kFloat32, stream);
      case plan::Op::kAllReduce:
        return all_reduce(device_, send_.get(), recv_.get(), buffer_floats, Dtype::kFloat32,
                          RedOp::kSum, stream);
      case plan::Op::kReduceScatter:
        return reduce_scatter(device_, send_.get(), recv_.get(), floats, Dtype::kFloat32,
                              RedOp::kSum, stream);
      case plan::Op::kAllToAll:
        return all_to_all(device_, send_.get(), recv_.get(), floats, Dtype::kFloat32, stream);
      case plan::Op::kBroadcast:
        return broadcast(device_, recv_.get(), recv_.get(), buffer_floats, Dtype::kFloat32, 0,
                         stream);
    }
    return internal_error("op {} is unknown", static_cast<int>(op));
  }

  /// Of all ranks; and so all learn how long the slowest has been at it.
  Result<double> slowest(double own_us) {
    const int64_t own[] = {static_cast<int64_t>(own_us * 1e3), now_ns() - begin_ns_};
    BRAID_ASSIGN_OR_RETURN(
        const auto texts,
        group_.exchange("gpu tuning", fmt::format("{} {}", own[0], own[1]), deadline_));
    int64_t most_ns = 0;  // whole numbers, which no rank's locale reads differently
    for (const std::string& text : texts) {
      int64_t call_ns = 0, elapsed_ns = 0;
      const char* const end = text.data() + text.size();
      const char* const space = std::from_chars(text.data(), end, call_ns).ptr;
      if (space != end) std::from_chars(space + 1, end, elapsed_ns);
      most_ns = std::max(most_ns, call_ns);
      pace_.saw(elapsed_ns);
    }
    return static_cast<double>(most_ns) / 1e3;
  }

  comm::Device& device_;
  group::Group& group_;
  const Deadline deadline_;
  const TuneWork work_;
  const int64_t begin_ns_ = now_ns();
  TunePace pace_;
  std::string disturbed_;
  sys::DeviceMemory send_, recv_;
  sys::OwnedStream stream_;
  std::array<sys::OwnedEvent, 2> events_;
};

void tell_given_up(const comm::Device& device, const Tuner& tuner, int num_done) {
  if (device.rank() != 0) return;
  const double seconds = static_cast<double>(tuner.elapsed_ns()) / 1e9;
  if (!tuner.disturbed().empty())
    return log::warn("coll",
                     "tuning of {} GPUs was given up after {:.1f} s: {}; NVLink alone carries what "
                     "was not measured, and nothing is kept: the next comm measures again",
                     device.size(), seconds, tuner.disturbed());
  log::warn("coll",
            "tuning of {} GPUs ended after {:.1f} s (BRAID_TUNE_TIME) with {} operations measured; "
            "NVLink alone carries the others",
            device.size(), seconds, num_done);
}

// Runs `tune` for every operation, on a Tuner that all ranks have memory for; without it everything
// stays as it is. True: what was found is worth keeping. A machine that is merely slow is not
// measured again by every comm.
Result<bool> with_tuner(comm::Device& device, group::Group& group, Deadline deadline,
                        const TuneWork& work, int parts_of_one, std::span<const plan::Op> ops,
                        const std::function<Result<bool>(Tuner&, plan::Op)>& tune) {
  Tuner tuner(device, group, deadline, work, parts_of_one * static_cast<int>(ops.size()));
  Status ready = tuner.prepare();
  BRAID_ASSIGN_OR_RETURN(const auto verdicts,
                         group.exchange("gpu tuning memory", ready.to_string(), deadline));
  for (const std::string& verdict : verdicts)
    if (verdict != "ok") {
      log::info("coll", "gpu {}: no memory to tune with, NVLink alone is used: {}",
                device.ordinal(), verdict);
      return false;
    }
  BRAID_RETURN_IF_ERROR(tuner.open());
  int num_done = 0;
  for (const plan::Op op : ops) {
    BRAID_ASSIGN_OR_RETURN(const bool is_done, tune(tuner, op));
    if (!is_done) break;
    ++num_done;
  }
  BRAID_RETURN_IF_ERROR(tuner.close());
  const bool are_done = num_done == static_cast<int>(ops.size());
  if (!are_done) tell_given_up(device, tuner, num_done);
  return are_done || (num_done > 0 && tuner.disturbed().empty());
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

Result<bool> tune_host_shares(comm::Device& device, group::Group& group, Deadline deadline,
                              const TuneWork& work) {
  return with_tuner(device, group, deadline, work, kSizes * kPartsOfOne, plan::kAllOps,
                    [](Tuner& tuner, plan::Op op) { return tuner.tune(op); });
}

Status tune_rdma_shares(comm::Device& device, group::Group& group, Deadline deadline,
                        const TuneWork& work) {
  if (!device.rdma().is_on() || device.rdma().is_share_given()) return {};
  std::vector<plan::Op> ops;
  for (const plan::Op op : plan::kAllOps)
    if (comm::Rdma::can_carry(op)) ops.push_back(op);
  return with_tuner(device, group, deadline, work, 1, ops,
                    [](Tuner& tuner, plan::Op op) { return tuner.tune_rdma(op); })
      .status();
}

}  // namespace braid::coll::device
