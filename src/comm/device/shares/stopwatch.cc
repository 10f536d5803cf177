#include "comm/device/shares/stopwatch.h"

namespace braid::comm {

Result<Stopwatch> Stopwatch::create(sys::Cuda& cuda) {
  Stopwatch watch(cuda);
  for (Run& run : watch.runs_)
    for (sys::OwnedEvent& event : run.events) {
      BRAID_ASSIGN_OR_RETURN(
          event, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOn)));
    }
  return watch;
}

void Stopwatch::begin(uint64_t number) {
  stop();
  if (next_ - oldest_ == kMostPending) return;
  Run& run = runs_[next_ % kMostPending];
  run.number = number;
  run.is_marked = {};
  is_running_ = true;
}

Status Stopwatch::mark(CallStage stage, sys::Stream stream) {
  if (!is_running_) return {};
  Run& run = runs_[next_ % kMostPending];
  if (run.has(stage)) return {};
  run.is_marked[static_cast<size_t>(stage)] = true;
  return cuda_->record(run.at(stage), stream);
}

// A call that failed on its way has not marked all: its place is used again.
void Stopwatch::stop() {
  if (!is_running_) return;
  is_running_ = false;
  const Run& run = runs_[next_ % kMostPending];
  if (run.has(CallStage::kStart) && run.has(CallStage::kBaseDone)) ++next_;
}

Result<bool> Stopwatch::has_ended(const Run& run) const {
  for (const CallStage stage : {CallStage::kBaseDone, CallStage::kBesideDone}) {
    if (!run.has(stage)) continue;
    BRAID_ASSIGN_OR_RETURN(const bool is_done, cuda_->is_done(run.at(stage)));
    if (!is_done) return false;
  }
  return true;
}

Result<int64_t> Stopwatch::elapsed_ns(const Run& run, CallStage until) const {
  if (!run.has(until)) return 0;
  return cuda_->elapsed_ns(run.at(CallStage::kStart), run.at(until));
}

// Asking an event is among the things that are forbidden while any thread captures, though ours is
// in no graph.
Result<std::optional<Stopwatch::Reading>> Stopwatch::take() {
  if (oldest_ == next_) return std::optional<Reading>();
  const sys::RelaxedCapture relaxed(*cuda_);
  const Run& run = runs_[oldest_ % kMostPending];
  BRAID_ASSIGN_OR_RETURN(const bool has_come, has_ended(run));
  if (!has_come) return std::optional<Reading>();
  Reading reading{run.number, {}};
  BRAID_ASSIGN_OR_RETURN(reading.times.base_ns, elapsed_ns(run, CallStage::kBaseDone));
  BRAID_ASSIGN_OR_RETURN(reading.times.beside_ns, elapsed_ns(run, CallStage::kBesideDone));
  ++oldest_;
  return std::optional<Reading>(reading);
}

}  // namespace braid::comm
