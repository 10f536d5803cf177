#include "comm/device/call_clock.h"

#include <utility>

#include "base/clock.h"
#include "base/units.h"

namespace braid::comm {

namespace {

// A float of milliseconds tells 60 ns apart at one second, and 4 us at a minute.
constexpr int64_t kFarNs = 1_s;

}  // namespace

Result<CallClock> CallClock::create(sys::Cuda& cuda, sys::Stream idle) {
  BRAID_ASSIGN_OR_RETURN(auto known,
                         sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOn)));
  BRAID_RETURN_IF_ERROR(cuda.synchronize(idle));
  BRAID_RETURN_IF_ERROR(cuda.record(known.get(), idle));
  BRAID_RETURN_IF_ERROR(cuda.synchronize(idle));
  return CallClock(cuda, std::move(known), now_ns());
}

Result<CallClock::Run> CallClock::take_run() {
  if (!spare_.empty()) {
    Run run = std::move(spare_.back());
    spare_.pop_back();
    return run;
  }
  Run run;
  for (sys::OwnedEvent* event : {&run.begin, &run.end}) {
    BRAID_ASSIGN_OR_RETURN(
        *event, sys::own<sys::OwnedEvent>(*cuda_, cuda_->create_event(sys::EventTiming::kOn)));
  }
  return run;
}

Status CallClock::begin(uint64_t number, sys::Stream stream) {
  if (is_running_) pending_.pop_back();  // a call that failed on its way
  is_running_ = false;
  if (pending_.size() == kMostPending) return {};
  BRAID_ASSIGN_OR_RETURN(Run run, take_run());
  run.number = number;
  run.begin_ns = 0;
  BRAID_RETURN_IF_ERROR(cuda_->record(run.begin.get(), stream));
  pending_.push_back(std::move(run));
  is_running_ = true;
  return {};
}

Status CallClock::end(sys::Stream stream) {
  if (!std::exchange(is_running_, false)) return {};
  const Status recorded = cuda_->record(pending_.back().end.get(), stream);
  if (!recorded.ok()) pending_.pop_back();
  return recorded;
}

Result<int64_t> CallClock::time_of(const sys::OwnedEvent& event) const {
  BRAID_ASSIGN_OR_RETURN(const int64_t after_ns, cuda_->elapsed_ns(known_.get(), event.get()));
  return known_ns_ + after_ns;
}

Result<bool> CallClock::settle_oldest(const Told& told) {
  Run& run = pending_.front();
  if (run.begin_ns == 0) {
    BRAID_ASSIGN_OR_RETURN(const bool has_begun, cuda_->is_done(run.begin.get()));
    if (!has_begun) return false;
    BRAID_ASSIGN_OR_RETURN(run.begin_ns, time_of(run.begin));
    told(run.number, run.begin_ns, 0);
  }
  if (is_running_ && pending_.size() == 1) return false;
  BRAID_ASSIGN_OR_RETURN(const bool has_ended, cuda_->is_done(run.end.get()));
  if (!has_ended) return false;
  BRAID_ASSIGN_OR_RETURN(const int64_t end_ns, time_of(run.end));
  told(run.number, run.begin_ns, end_ns);
  if (end_ns - known_ns_ > kFarNs) {
    std::swap(known_, run.end);
    known_ns_ = end_ns;
  }
  spare_.push_back(std::move(run));
  pending_.pop_front();
  return true;
}

// Asking an event is among the things that are forbidden while any thread captures, though ours is
// in no graph.
Status CallClock::settle(const Told& told) {
  if (pending_.empty()) return {};
  const sys::RelaxedCapture relaxed(*cuda_);
  while (!pending_.empty()) {
    BRAID_ASSIGN_OR_RETURN(const bool is_done, settle_oldest(told));
    if (!is_done) break;
  }
  return {};
}

}  // namespace braid::comm
