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
  static constexpr size_t kBaseLink = 0;  // DeviceLink::index()
  static constexpr size_t kMostWatched = 8;

  CallWatch() = default;
  struct Ground {
    Observer* observer;
    sys::Cuda& cuda;
    int ordinal;       // of the GPU whose context is current
    sys::Stream idle;  // of our own, with nothing on it
  };
  /// Where the clock cannot be made calls are noted without times. Once there `is_trouble` waits of
  /// kernels end in vain, and a call whose work is over is not done.
  void start(const Ground& ground, std::function<bool()> is_trouble);

  /// The caller's stream has waited for the call before.
  void begin(const CallShape& shape, sys::Stream stream, bool is_captured) {
    is_noted_ = observer_ != nullptr && observer_->is_listening();
    if (is_noted_) note_begin(shape, stream, is_captured);
  }
  /// How the call goes, and bytes that this rank sends over the link of that index.
  void took(const char* path) { path_ = path; }
  void sends(size_t link, uint64_t bytes) { sent_bytes_[link] += bytes; }
  /// All of it is enqueued, or it failed on its way.
  void end(sys::Stream stream, bool is_ok) {
    if (is_noted_) note_end(stream, is_ok);
    is_noted_ = false;
  }
  /// Passes on what the GPU has done meanwhile. With the device's context current.
  void settle();
  /// The same from wherever the comm may be called; takes the context.
  void look();

 private:
  void note_begin(const CallShape& shape, sys::Stream stream, bool is_captured);
  void note_end(sys::Stream stream, bool is_ok);
  void drop_clock(const Status& why);
  std::vector<LinkNote> link_notes() const;

  Observer* observer_ = nullptr;
  std::function<bool()> is_trouble_;
  sys::Cuda* cuda_ = nullptr;
  int ordinal_ = 0;
  size_t num_links_ = 0;   // that the observer knows
  size_t first_link_ = 0;  // of CommFacts::links
  std::optional<CallClock> clock_;
  // Of the call under way:
  bool is_noted_ = false, is_captured_ = false;
  uint64_t number_ = 0;
  const char* path_ = "";
  std::array<uint64_t, kMostWatched> sent_bytes_{};
};

}  // namespace braid::comm
