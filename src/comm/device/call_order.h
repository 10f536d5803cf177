// CallOrder: the order of a comm's calls on the GPU, and the streams and events of our own that a
// call uses beside the caller's.
//
// Calls on one comm are ordered among each other, whatever streams they are given: a call on
// another stream waits for the one before; within a graph too. A graph and what is not in it are
// the caller's to order.
//
// Threads: as comm::Device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "sys/cuda/api.h"

namespace braid::comm {

class CallOrder {
 public:
  /// In the current context.
  static Result<std::unique_ptr<CallOrder>> create(sys::Cuda& cuda);
  /// In that context again.
  ~CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  /// Before a call whose begin() is yet to come.
  void expect_call() { is_captured_ = false; }
  /// A stream of ours beside side()s, which calls may use.
  void add_stream(sys::Stream stream) { ours_.push_back(stream); }

  /// Orders a call after the one before. invalid_argument, before anything is enqueued, while a
  /// capture that the call is not part of has streams of ours: work inside of it and outside may not
  /// wait for each other, and the driver would end it.
  Status begin(sys::Stream user);
  Status end(sys::Stream user);
  /// For who has steps of its own beside the calls that it is made of: they come after the call
  /// before, and an end() behind the last of them makes it all one. invalid_argument as begin().
  Status follow(sys::Stream user);
  /// Whether the call under way is captured in a graph: what fails in it has enqueued nothing that
  /// any rank could wait for.
  bool is_captured() const { return is_captured_; }
  /// Whether any call of the comm was, and may be replayed.
  bool has_captures() const { return has_captures_; }
  /// How many were, so that later ones can be told.
  uint64_t num_captured() const { return num_captured_; }
  /// invalid_argument while a capture has streams of ours.
  Status expect_no_capture() { return expect_ours_in(0); }
  /// No graph is replayed any longer.
  void forget_captures() { has_captures_ = false; }

  /// By a call that ends in a barrier of all ranks behind which none of them uses the scratch or
  /// the links beside the base link any longer, once that is enqueued.
  void settle() { settles_ = !has_captures_; }
  /// Whether the call before this one did so: this one may write into peers' scratch at once. Never
  /// where a graph was captured, which may be replayed between any two calls.
  bool is_settled() const { return is_settled_; }

  /// Streams of ours that a call may use, joined to the caller's by events.
  enum Side { kCopies = 0, kSums = 1, kOwn = 2, kNumSides };
  sys::Stream side(Side side) const { return sides_[side]; }
  /// A point in a stream, good until 256 later ones were taken.
  Result<sys::Event> mark(sys::Stream stream);
  Status wait(sys::Stream stream, sys::Event point) { return cuda_.wait_event(stream, point); }
  /// Work enqueued on `to` from now on starts after what is on `from` now.
  Status after(sys::Stream to, sys::Stream from);

  /// Waits on the host for the last call that was not captured; also while others are.
  Status finish_last_call();
  /// ... and for all that is on our streams.
  void drain();

 private:
  /// The last call of a capture. Captures may take turns: as many at a time as captures_ has room
  /// for, the calls of more lose their order.
  struct Captured {
    uint64_t id = 0;  // 0: none yet
    sys::Event last_call{};
  };

  explicit CallOrder(sys::Cuda& cuda) : cuda_(cuda) {}
  Status make();
  Result<bool> is_in_capture(sys::Stream user);
  Status expect_apart(sys::Stream user, bool is_captured);
  /// Whether streams of ours that are in a capture are in this one; 0: in none.
  Status expect_ours_in(uint64_t capture);
  Status follow_eager(sys::Stream user);
  Status follow_captured(sys::Stream user);
  Status note_captured(sys::Stream user);

  sys::Cuda& cuda_;
  std::array<sys::Stream, kNumSides> sides_{};
  std::vector<sys::Stream> ours_;  // sides_, and what add_stream() was told
  sys::Stream idle_{};             // that no call uses: for the host to wait on
  std::array<sys::Event, 256> events_{};
  size_t next_event_ = 0;
  sys::Event last_call_{};
  std::array<Captured, 16> captures_{};  // the same, of the captures that had calls last
  size_t next_capture_ = 0;
  bool has_last_call_ = false;
  bool is_captured_ = false;  // the call under way
  bool has_captures_ = false;
  uint64_t num_captured_ = 0;
  bool may_be_open_ = false;                   // a capture that has streams of ours
  bool settles_ = false, is_settled_ = false;  // the call under way; the one before
};

}  // namespace braid::comm
