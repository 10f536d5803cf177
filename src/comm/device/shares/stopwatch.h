// Stopwatch: when the parts of a call were done, by events on the streams that did them. Nobody
// waits for an event: a later call looks whether they have come.
//
//   caller's stream   barrier  START ... pushes  BASE  barrier
//   the link's stream                part        BESIDE
//
// A broadcast of several segments is timed in its first, an all-reduce's segments run through and
// are timed as one. A captured call is never timed: its events would belong to the graph.
//
// Threads: as comm::Device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "comm/device/shares/samples.h"
#include "sys/cuda/owned.h"

namespace braid::comm {

enum class CallStage { kStart = 0, kBaseDone = 1, kBesideDone = 2 };
inline constexpr size_t kNumCallStages = 3;

class Stopwatch {
 public:
  static constexpr uint64_t kMostPending = 8;
  struct Reading {
    uint64_t number;
    CallTimes times;
  };

  /// In the current context, which the events must not outlive.
  static Result<Stopwatch> create(sys::Cuda& cuda);
  Stopwatch(Stopwatch&&) = default;
  Stopwatch& operator=(Stopwatch&&) = delete;

  /// The calls of mark() until stop() belong to sample `number`. Without effect when the events of
  /// kMostPending samples are still under way.
  void begin(uint64_t number);
  /// The first of its kind in a sample counts.
  Status mark(CallStage stage, sys::Stream stream);
  void stop();
  /// The oldest sample whose events have all come, if it has. Only while nothing is captured by
  /// this thread.
  Result<std::optional<Reading>> take();

 private:
  struct Run {
    uint64_t number = 0;
    std::array<sys::OwnedEvent, kNumCallStages> events;
    std::array<bool, kNumCallStages> is_marked{};
    bool has(CallStage stage) const { return is_marked[static_cast<size_t>(stage)]; }
    sys::Event at(CallStage stage) const { return events[static_cast<size_t>(stage)].get(); }
  };
  explicit Stopwatch(sys::Cuda& cuda) : cuda_(&cuda) {}
  Result<int64_t> elapsed_ns(const Run& run, CallStage until) const;
  Result<bool> has_ended(const Run& run) const;

  sys::Cuda* cuda_;
  std::array<Run, kMostPending> runs_;
  uint64_t next_ = 0, oldest_ = 0;  // runs begun and taken since the start
  bool is_running_ = false;
};

}  // namespace braid::comm
