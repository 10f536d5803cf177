#include "comm/device/call_order.h"

#include <algorithm>
#include <utility>

#include "sys/cuda/owned.h"

namespace braid::comm {

Result<std::unique_ptr<CallOrder>> CallOrder::create(sys::Cuda& cuda) {
  std::unique_ptr<CallOrder> order(new CallOrder(cuda));
  BRAID_RETURN_IF_ERROR(order->make());
  return order;
}

Status CallOrder::make() {
  for (sys::Stream& side : sides_) {
    BRAID_ASSIGN_OR_RETURN(side, cuda_.create_stream(sys::StreamPriority::kHigh));
    ours_.push_back(side);
  }
  for (sys::Event& event : events_) {
    BRAID_ASSIGN_OR_RETURN(event, cuda_.create_event(sys::EventTiming::kOff));
  }
  BRAID_ASSIGN_OR_RETURN(last_call_, cuda_.create_event(sys::EventTiming::kOff));
  for (Captured& each : captures_) {
    BRAID_ASSIGN_OR_RETURN(each.last_call, cuda_.create_event(sys::EventTiming::kOff));
  }
  BRAID_ASSIGN_OR_RETURN(idle_, cuda_.create_stream(sys::StreamPriority::kNormal));
  return {};
}

CallOrder::~CallOrder() {
  for (const sys::Stream stream : sides_)
    if (stream.handle != nullptr) (void)cuda_.destroy_stream(stream);
  if (idle_.handle != nullptr) (void)cuda_.destroy_stream(idle_);
  for (const sys::Event event : events_)
    if (event.handle != nullptr) (void)cuda_.destroy_event(event);
  for (const Captured& each : captures_)
    if (each.last_call.handle != nullptr) (void)cuda_.destroy_event(each.last_call);
  if (last_call_.handle != nullptr) (void)cuda_.destroy_event(last_call_);
}

Status CallOrder::begin(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(is_captured_, is_in_capture(user));
  BRAID_RETURN_IF_ERROR(expect_apart(user, is_captured_));
  has_captures_ = has_captures_ || is_captured_;
  num_captured_ += is_captured_ ? 1 : 0;
  is_settled_ = std::exchange(settles_, false) && !has_captures_;
  return is_captured_ ? follow_captured(user) : follow_eager(user);
}

Status CallOrder::follow(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const bool is_captured, is_in_capture(user));
  BRAID_RETURN_IF_ERROR(expect_apart(user, is_captured));
  return is_captured ? follow_captured(user) : follow_eager(user);
}

Result<bool> CallOrder::is_in_capture(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda_.capture_state(user));
  if (capture == sys::CaptureState::kInvalidated)
    return invalid_argument("stream {}: its capture has become invalid", user.handle);
  return capture != sys::CaptureState::kNone;
}

// Nothing tells when a capture ends but our streams, which have left it then: those of one that is
// open are looked at until they have.
Status CallOrder::expect_apart(sys::Stream user, bool is_captured) {
  uint64_t capture = 0;
  if (is_captured) {
    BRAID_ASSIGN_OR_RETURN(capture, cuda_.capture_id(user));
  }
  BRAID_RETURN_IF_ERROR(expect_ours_in(capture));
  may_be_open_ = may_be_open_ || is_captured;
  return {};
}

Status CallOrder::expect_ours_in(uint64_t capture) {
  if (!may_be_open_) return {};
  may_be_open_ = false;
  for (const sys::Stream stream : ours_) {
    BRAID_ASSIGN_OR_RETURN(const sys::CaptureState state, cuda_.capture_state(stream));
    if (state == sys::CaptureState::kNone) continue;
    may_be_open_ = true;
    BRAID_ASSIGN_OR_RETURN(const uint64_t id, cuda_.capture_id(stream));
    if (id == 0 || id != capture)
      return invalid_argument(
          "calls of this comm are being captured: until that capture ends it takes no others");
  }
  return {};
}

Status CallOrder::follow_eager(sys::Stream user) {
  return has_last_call_ ? cuda_.wait_event(user, last_call_) : Status();
}

// Two calls of one graph on streams that nothing joins would use the same scratch at once. Captured
// work may not wait for an event of another capture, or of none.
Status CallOrder::follow_captured(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t id, cuda_.capture_id(user));
  const auto found = std::ranges::find(captures_, id, &Captured::id);
  if (id == 0 || found == captures_.end()) return {};
  return cuda_.wait_event(user, found->last_call);
}

// In place of the oldest, where it is new.
Status CallOrder::note_captured(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t id, cuda_.capture_id(user));
  if (id == 0) return {};
  auto found = std::ranges::find(captures_, id, &Captured::id);
  if (found == captures_.end()) found = &captures_[next_capture_++ % captures_.size()];
  found->id = id;
  return cuda_.record(found->last_call, user);
}

Status CallOrder::end(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda_.capture_state(user));
  if (capture != sys::CaptureState::kNone) return note_captured(user);
  has_last_call_ = true;
  return cuda_.record(last_call_, user);
}

Result<sys::Event> CallOrder::mark(sys::Stream stream) {
  const sys::Event event = events_[next_event_++ % events_.size()];
  BRAID_RETURN_IF_ERROR(cuda_.record(event, stream));
  return event;
}

Status CallOrder::after(sys::Stream to, sys::Stream from) {
  BRAID_ASSIGN_OR_RETURN(const sys::Event point, mark(from));
  return wait(to, point);
}

// Through the event: the stream of the last call was the user's, who may have destroyed it since. On
// a stream of its own: the others may be in a capture.
Status CallOrder::finish_last_call() {
  if (!has_last_call_) return {};
  const sys::RelaxedCapture relaxed(cuda_);
  BRAID_RETURN_IF_ERROR(cuda_.wait_event(idle_, last_call_));
  return cuda_.synchronize(idle_);
}

void CallOrder::drain() {
  for (const sys::Stream stream : sides_)
    if (stream.handle != nullptr) (void)cuda_.synchronize(stream);
  (void)finish_last_call();
}

}  // namespace braid::comm
