// A FakeCuda whose events tell modelled times. FakeCuda runs work at once, one piece after the
// other, so its own times say nothing of links that work side by side. Here every stream has a
// clock of its own, in nanoseconds that nobody spends:
//
//   a copy between two devices   takes its bytes by the rate of NVLink of the device it leaves
//   the host ring's kernel       takes a start and the bytes a rank gets by its host link's rate
//   wait_event, braid_barrier    take the stream to the later of the two, or of all
//
// Rates may be changed at any time, for each device: a link that other copies load. Events may be
// slow to be seen, and streams may be captured.
//
// Threads: as FakeCuda.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "support/fake_kernels.h"

namespace braid::test {

class TimedCuda : public sys::FakeCuda {
 public:
  static constexpr double kRingStartNs = 1000;

  explicit TimedCuda(int num_devices)
      : FakeCuda(num_devices), rates_(static_cast<size_t>(num_devices)) {}

  void set_nvlink_gbps(int device, double gbps) {
    const std::lock_guard lock(mutex_);
    rates_[static_cast<size_t>(device)].nvlink_gbps = gbps;
  }
  void set_host_gbps(int device, double gbps) {
    const std::lock_guard lock(mutex_);
    rates_[static_cast<size_t>(device)].host_gbps = gbps;
  }
  /// Work that takes so long and does nothing.
  void spend(sys::Stream stream, double ns) {
    const std::lock_guard lock(mutex_);
    clocks_[stream.handle] += ns;
  }
  /// Whether an event has come is denied so many times after each record.
  void set_lateness(int num_questions) {
    const std::lock_guard lock(mutex_);
    lateness_ = num_questions;
  }
  /// Events that were denied are not any longer.
  void let_come() {
    const std::lock_guard lock(mutex_);
    for (auto& [handle, time] : events_) time.denials = 0;
  }
  void set_captured(sys::Stream stream, bool is_captured) {
    const std::lock_guard lock(mutex_);
    if (is_captured)
      captured_.insert(stream.handle);
    else
      captured_.erase(stream.handle);
  }
  /// Events that were recorded and can tell times, since the start.
  uint64_t num_timed() const {
    const std::lock_guard lock(mutex_);
    return num_timed_;
  }

  Result<sys::CaptureState> capture_state(sys::Stream stream) override {
    const std::lock_guard lock(mutex_);
    return captured_.contains(stream.handle) ? sys::CaptureState::kActive
                                             : sys::CaptureState::kNone;
  }
  Result<uint64_t> capture_id(sys::Stream stream) override {
    const std::lock_guard lock(mutex_);
    return captured_.contains(stream.handle) ? 1 : 0;
  }
  Result<sys::Event> create_event(sys::EventTiming timing) override {
    Result<sys::Event> made = FakeCuda::create_event(timing);
    const std::lock_guard lock(mutex_);
    if (made.ok() && timing == sys::EventTiming::kOn)
      events_[made.value().handle].has_timing = true;
    return made;
  }
  Status record(sys::Event event, sys::Stream stream) override {
    {
      const std::lock_guard lock(mutex_);
      EventTime& time = events_[event.handle];
      num_timed_ += time.has_timing ? 1 : 0;
      time.ns = clocks_[stream.handle];
      time.denials = lateness_;
    }
    return FakeCuda::record(event, stream);
  }
  Status wait_event(sys::Stream stream, sys::Event event) override {
    {
      const std::lock_guard lock(mutex_);
      reach(stream, events_[event.handle].ns);
    }
    return FakeCuda::wait_event(stream, event);
  }
  Result<bool> is_done(sys::Stream stream) override { return FakeCuda::is_done(stream); }
  Result<bool> is_done(sys::Event event) override {
    const std::lock_guard lock(mutex_);
    return events_[event.handle].denials-- <= 0;
  }
  Result<int64_t> elapsed_ns(sys::Event begin, sys::Event end) override {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(events_[end.handle].ns - events_[begin.handle].ns);
  }
  Status copy_on_device(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes,
                        sys::Stream stream) override {
    const Result<sys::PointerFacts> at = pointer_facts(from), there = pointer_facts(to);
    if (at.ok() && there.ok() && at->device >= 0 && at->device != there->device) {
      const std::lock_guard lock(mutex_);
      clocks_[stream.handle] +=
          static_cast<double>(bytes) / rates_[static_cast<size_t>(at->device)].nvlink_gbps;
    }
    return FakeCuda::copy_on_device(to, from, bytes, stream);
  }
  Result<sys::Kernel> kernel(sys::Module module, const char* name) override {
    Result<sys::Kernel> found = FakeCuda::kernel(module, name);
    const std::lock_guard lock(mutex_);
    if (found.ok()) names_[found.value().handle] = name;
    return found;
  }
  Status launch_kernel(sys::Kernel kernel, const sys::LaunchShape& shape, sys::Stream stream,
                       std::span<void*> arguments) override {
    Meeting meeting{};
    {
      const std::lock_guard lock(mutex_);
      const std::string& name = names_[kernel.handle];
      if (name.starts_with("braid_host_ring")) pass_ring(stream, arguments);
      if (name == "braid_barrier") meeting = tell(stream, arguments);
    }
    BRAID_RETURN_IF_ERROR(FakeCuda::launch_kernel(kernel, shape, stream, arguments));
    const std::lock_guard lock(mutex_);
    for (const auto& peer : meeting) reach(stream, told_[peer]);
    return {};
  }

 private:
  /// The comm's signal pad, channel, number, rank: who told when.
  using Told = std::tuple<const void*, int32_t, uint64_t, int>;
  using Meeting = std::vector<Told>;
  struct Rates {
    double nvlink_gbps = 385, host_gbps = 33;
  };
  struct EventTime {
    double ns = 0;
    int denials = 0;
    bool has_timing = false;
  };

  void reach(sys::Stream stream, double ns) {
    clocks_[stream.handle] = std::max(clocks_[stream.handle], ns);
  }
  void pass_ring(sys::Stream stream, std::span<void*> arguments) {
    const auto team = argument<nvlink::Team>(arguments, 0);
    const auto flows = argument<pcie::Flows>(arguments, 2);
    uint64_t sent = 0, received = 0;
    for (int i = 0; i < flows.num_flows; ++i)
      (flows.flow[i].source != nullptr ? sent : received) += flows.flow[i].bytes;
    clocks_[stream.handle] += kRingStartNs + static_cast<double>(std::max(sent, received)) /
                                                 rates_[static_cast<size_t>(team.rank)].host_gbps;
  }
  Meeting tell(sys::Stream stream, std::span<void*> arguments) {
    const auto team = argument<nvlink::Team>(arguments, 0);
    const auto pad = argument<nvlink::SignalPad>(arguments, 1);
    const auto channel = argument<int32_t>(arguments, 2);
    const auto masks = argument<nvlink::BarrierMask>(arguments, 3);
    const uint64_t number = pad.numbers[channel] + 1;
    told_[{pad.signals[0], channel, number, team.rank}] = clocks_[stream.handle];
    Meeting heard;
    for (int peer = 0; peer < team.size; ++peer)
      if (peer != team.rank && (masks.hears >> peer & 1U) != 0)
        heard.push_back({pad.signals[0], channel, number, peer});
    return heard;
  }

  mutable std::mutex mutex_;
  std::vector<Rates> rates_;  // [device]; rank r is on device r
  int lateness_ = 0;
  uint64_t num_timed_ = 0;
  std::set<void*> captured_;
  std::map<void*, double> clocks_;  // [stream]
  std::map<void*, EventTime> events_;
  std::map<void*, std::string> names_;  // of kernels
  std::map<Told, double> told_;
};

}  // namespace braid::test
