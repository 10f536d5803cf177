#include "coll/device/tune.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/log.h"
#include "coll/device/collectives.h"
#include "sys/cuda/owned.h"

namespace braid::coll::device {

namespace {

constexpr uint64_t kBlockBytes = 64 << 20;
constexpr double kShares[] = {0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12};
// In a row: one alone would also measure how fast the host enqueues it.
constexpr int kCalls = 3;
constexpr int kRounds = 5;  // of which the first warms up
constexpr double kLeastGain = 0.02;

class Tuner {
 public:
  Tuner(comm::Device& device, group::Group& group, Deadline deadline)
      : device_(device), group_(group), deadline_(deadline) {}

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

  Status tune(plan::Op op) {
    std::vector<std::vector<double>> times_us(std::size(kShares));
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < std::size(kShares); ++i) {
        device_.set_host_share(op, kShares[i]);
        BRAID_ASSIGN_OR_RETURN(const double own_us, time_calls(op));
        BRAID_ASSIGN_OR_RETURN(const double slowest_us, slowest(own_us));
        if (round > 0) times_us[i].push_back(slowest_us);
      }
    size_t best = 0;
    for (size_t i = 1; i < times_us.size(); ++i)
      if (median(times_us[i]) < median(times_us[best])) best = i;
    const double alone_us = median(times_us[0]);
    const bool is_worth_it = median(times_us[best]) < alone_us * (1 - kLeastGain);
    device_.set_host_share(op, is_worth_it ? kShares[best] : 0);
    log::info("coll",
              "gpu {}: {}: {:.1f} us over NVLink alone, {:.1f} us with {} % over the host link",
              device_.ordinal(), plan::op_name(op), alone_us, median(times_us[best]),
              100 * kShares[best]);
    return {};
  }

 private:
  uint64_t bytes_of_all() const { return kBlockBytes * static_cast<uint64_t>(device_.size()); }
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
  }

  Result<double> time_calls(plan::Op op) {
    sys::Cuda& cuda = device_.cuda();
    const sys::Stream stream = stream_.get();
    // Ranks meet before the clock starts: otherwise the first to come measures its own waiting.
    BRAID_RETURN_IF_ERROR(barrier(device_, stream));
    BRAID_RETURN_IF_ERROR(cuda.record(events_[0].get(), stream));
    for (int call = 0; call < kCalls; ++call) BRAID_RETURN_IF_ERROR(run(op, stream));
    BRAID_RETURN_IF_ERROR(cuda.record(events_[1].get(), stream));
    BRAID_RETURN_IF_ERROR(cuda.synchronize(stream));
    BRAID_ASSIGN_OR_RETURN(const int64_t took_ns,
                           cuda.elapsed_ns(events_[0].get(), events_[1].get()));
    return static_cast<double>(took_ns) / 1e3 / kCalls;
  }

  Status run(plan::Op op, sys::Stream stream) {
    constexpr uint64_t kFloats = kBlockBytes / sizeof(float);
    const uint64_t all_floats = kFloats * static_cast<uint64_t>(device_.size());
    switch (op) {
      case plan::Op::kAllGather:
        return all_gather(device_, send_.get(), recv_.get(), kFloats, Dtype::kFloat32, stream);
      case plan::Op::kAllReduce:
        return all_reduce(device_, send_.get(), recv_.get(), all_floats, Dtype::kFloat32,
                          RedOp::kSum, stream);
      case plan::Op::kReduceScatter:
        return reduce_scatter(device_, send_.get(), recv_.get(), kFloats, Dtype::kFloat32,
                              RedOp::kSum, stream);
      case plan::Op::kAllToAll:
        return all_to_all(device_, send_.get(), recv_.get(), kFloats, Dtype::kFloat32, stream);
      case plan::Op::kBroadcast:
        return broadcast(device_, recv_.get(), all_floats, Dtype::kFloat32, 0, stream);
    }
    return internal_error("op {} is unknown", static_cast<int>(op));
  }

  Result<double> slowest(double own_us) {
    BRAID_ASSIGN_OR_RETURN(const auto texts,
                           group_.exchange("gpu tuning", fmt::format("{}", own_us), deadline_));
    double most_us = 0;
    for (const std::string& text : texts)
      most_us = std::max(most_us, std::strtod(text.c_str(), nullptr));
    return most_us;
  }

  comm::Device& device_;
  group::Group& group_;
  const Deadline deadline_;
  sys::DeviceMemory send_, recv_;
  sys::OwnedStream stream_;
  std::array<sys::OwnedEvent, 2> events_;
};

}  // namespace

Status tune_host_shares(comm::Device& device, group::Group& group, Deadline deadline) {
  Tuner tuner(device, group, deadline);
  Status ready = tuner.prepare();
  BRAID_ASSIGN_OR_RETURN(const auto verdicts,
                         group.exchange("gpu tuning memory", ready.to_string(), deadline));
  for (const std::string& verdict : verdicts)
    if (verdict != "ok") {
      log::info("coll", "gpu {}: no memory to tune with, NVLink alone is used: {}",
                device.ordinal(), verdict);
      return {};
    }
  BRAID_RETURN_IF_ERROR(tuner.open());
  for (const plan::Op op : plan::kAllOps) BRAID_RETURN_IF_ERROR(tuner.tune(op));
  return tuner.close();
}

}  // namespace braid::coll::device
