// CallWatch: what a Device tells the comm's Observer of its calls. Without one it does nothing.
//
// Threads: one at a time, as comm::Device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/status.h"
#include "comm/device/call_clock.h"
#include "comm/observe/observer.h"
#include "sys/cuda/api.h"

namespace braid::comm {

class CallWatch {
 public:
  enum Link { kNvlink = 0, kPcie = 1, kNic = 2, kNumLinks };

  CallWatch() = default;
  /// `idle` is a stream of our own with nothing on it. Where the clock cannot be made calls are
  /// noted without times. Once there `is_trouble` waits of kernels end in vain, and a call whose
  /// work is over is not done.
  void start(Observer* observer, sys::Cuda& cuda, sys::Stream idle,
             std::function<bool()> is_trouble);

  /// The caller's stream has waited for the call before.
  void begin(const CallShape& shape, sys::Stream stream, bool is_captured) {
    is_noted_ = observer_ != nullptr && observer_->is_listening();
    if (is_noted_) note_begin(shape, stream, is_captured);
  }
  /// How the call goes, and bytes that this rank sends.
  void took(const char* path) { path_ = path; }
  void sends(Link link, uint64_t bytes) { sent_bytes_[link] += bytes; }
  /// All of it is enqueued, or it failed on its way.
  void end(sys::Stream stream, bool is_ok) {
    if (is_noted_) note_end(stream, is_ok);
    is_noted_ = false;
  }
  /// Passes on what the GPU has done meanwhile. With the device's context current.
  void settle();
  bool has_pending() const { return clock_ && clock_->is_pending(); }

 private:
  void note_begin(const CallShape& shape, sys::Stream stream, bool is_captured);
  void note_end(sys::Stream stream, bool is_ok);
  void drop_clock(const Status& why);
  std::vector<LinkNote> link_notes() const;

  Observer* observer_ = nullptr;
  std::function<bool()> is_trouble_;
  std::array<int, kNumLinks> links_{};  // of CommFacts::links
  std::optional<CallClock> clock_;
  // Of the call under way:
  bool is_noted_ = false, is_captured_ = false;
  uint64_t number_ = 0;
  const char* path_ = "";
  std::array<uint64_t, kNumLinks> sent_bytes_{};
};

}  // namespace braid::comm
