#include "engine/session.h"

#include "base/check.h"

namespace braid::engine {

void Session::attach(ControlSocket socket, uint64_t peer_received) {
  socket_.emplace(std::move(socket));
  acknowledge(peer_received);
  for (const Kept& k : kept_) socket_->queue(k.type, k.sequence, received_, k.body);
  heard_at_ns_ = now_ns();
}

void Session::send(FrameType type, std::string body) {
  // The other side would refuse it, on each socket anew.
  BRAID_CHECK(body.size() <= kMostBodyBytes, "a frame of type {} with {} bytes",
              static_cast<int>(type), body.size());
  kept_.push_back({++sent_, type, std::move(body)});
  if (socket_) socket_->queue(type, sent_, received_, kept_.back().body);
}

void Session::acknowledge(uint64_t received) {
  while (!kept_.empty() && kept_.front().sequence <= received) kept_.pop_front();
}

Status Session::broken(const Status& why) {
  detach();
  return why;
}

Status Session::flush() {
  if (!socket_ || !socket_->has_output()) return {};
  const Status sent = socket_->flush();
  return sent.ok() ? sent : broken(sent);
}

Status Session::pump(const Handler& handle) {
  if (!socket_) return {};
  const Status filled = socket_->fill();  // the end of the stream, too, may have frames before it
  while (socket_) {
    Result<std::optional<Frame>> next = socket_->next();
    if (!next.ok()) return broken(next.status());
    if (!next->has_value()) break;
    BRAID_RETURN_IF_ERROR(take(**next, handle));
  }
  if (!filled.ok()) return broken(filled);
  return flush();
}

Status Session::take(const Frame& frame, const Handler& handle) {
  heard_at_ns_ = now_ns();
  acknowledge(frame.received);
  if (frame.sequence == 0 || frame.sequence <= received_) return {};  // a beat, or known
  if (frame.sequence != received_ + 1)
    return broken(invalid_argument("frame {} after frame {}", frame.sequence, received_));
  received_ = frame.sequence;
  return handle(frame);
}

void Session::beat(int64_t now) {
  if (!socket_ || now < beat_at_ns_) return;
  beat_at_ns_ = now + kBeatNs;
  socket_->queue(FrameType::kBeat, 0, received_, "");
}

}  // namespace braid::engine
