// Observer: what watches the calls of one comm, when an option asks for it: BRAID_TRACE,
// BRAID_TRACE_CALLS, BRAID_FLIGHT_RECORD, BRAID_METRICS_PORT, BRAID_NVTX. Without one of them a
// comm has none, and a call pays for the look at a null pointer.
//
// Calls on host memory go through Observed (coll/host), calls on a GPU through comm/device's
// CallWatch. Whatever an output meets, no call fails for it.
//
// Threads: begin() and end() by one at a time, as a comm's calls; everything else by any.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "comm/observe/journal.h"
#include "comm/observe/members.h"

namespace braid::sys {
class Nvtx;  // sys/nvtx/api.h
}  // namespace braid::sys

namespace braid::comm {

class FlightFile;  // these: comm/observe/outputs.h
class MetricsPort;
class TraceFile;

class Observer {
 public:
  /// Null when no option asks for one. `links` are the host's. Where two of the members say one
  /// rank in the job, all are shown by their ranks here.
  static std::unique_ptr<Observer> create(const Config& config, int rank, int size,
                                          const std::vector<std::string>& links,
                                          const Members& members);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Whether calls are noted now: not while a comm measures its links.
  bool is_listening() const { return num_pauses_.load(std::memory_order_relaxed) == 0; }
  void pause() { ++num_pauses_; }
  void resume() { --num_pauses_; }
  /// Whether times on the GPU are worth their events: somebody keeps or counts calls.
  bool wants_gpu_times() const { return wants_times_; }

  uint64_t begin(const CallNote& what);
  void end(uint64_t number, CallState state, Code code, const char* path,
           const std::vector<LinkNote>& links);
  /// A call failed. The first failure that ends the comm writes the flight record.
  void failed(const Status& why);
  /// The comm has ended by the group's news, whether or not a call was under way.
  void broken(const Status& why);

  Journal& journal() { return *journal_; }
  /// Whether notes are kept that can be shown.
  bool keeps_calls() const { return keeps_calls_; }
  /// This comm's notes as a timeline, and as a flight record in JSON.
  std::string trace() const;
  std::string flight_record() const;

  /// Writes what is to be written when a comm is closed. Twice is fine.
  void close();

  void use_nvtx(sys::Nvtx* nvtx) { nvtx_ = nvtx; }  // for tests

 private:
  explicit Observer(const Config& config);
  void open_outputs(const Config& config, int job_rank);

  const int64_t timeout_ns_;
  const std::string host_;
  bool keeps_calls_ = false, wants_times_ = false;
  std::shared_ptr<Journal> journal_;
  std::shared_ptr<TraceFile> trace_;
  std::shared_ptr<FlightFile> flight_;
  std::shared_ptr<MetricsPort> metrics_;
  sys::Nvtx* nvtx_ = nullptr;
  std::atomic<int> num_pauses_{0};
  std::atomic<bool> has_failed_{false}, is_closed_{false};
};

/// One call on host memory, from its making to end(). With a null observer it does nothing: what
/// would describe the call is not even asked.
class Observed {
 public:
  /// `describe` answers a CallNote.
  template <typename Describe>
  Observed(Observer* observer, Describe&& describe)
      : observer_(observer != nullptr && observer->is_listening() ? observer : nullptr) {
    if (observer_ != nullptr) number_ = observer_->begin(describe());
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

  /// `links` answers a vector of LinkNote.
  template <typename Links>
  void end(const Status& status, const char* path, Links&& links) {
    if (observer_ == nullptr) return;
    const CallState state = status.ok() ? CallState::kCompleted : CallState::kFailed;
    observer_->end(number_, state, Code::kOk, path, links());
    if (!status.ok()) observer_->failed(status);
  }

 private:
  Observer* const observer_;
  uint64_t number_ = 0;
};

/// No call is noted while it lives. `observer` may be null.
class Unobserved {
 public:
  explicit Unobserved(Observer* observer) : observer_(observer) {
    if (observer_ != nullptr) observer_->pause();
  }
  ~Unobserved() {
    if (observer_ != nullptr) observer_->resume();
  }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

 private:
  Observer* const observer_;
};

}  // namespace braid::comm
