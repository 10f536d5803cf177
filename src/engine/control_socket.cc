#include "engine/control_socket.h"

#include <algorithm>
#include <cstring>

#include "engine/codec.h"
#include "sys/net/api.h"

namespace braid::engine {

void ControlSocket::seal(std::string_view send_key, std::string_view receive_key) {
  send_.emplace(Direction{group::KeyedHash(send_key), 0});
  receive_.emplace(Direction{group::KeyedHash(receive_key), 0});
}

group::Digest ControlSocket::seal_of(Direction& direction, std::string_view frame) {
  Writer count;
  count.number(direction.count++);
  return direction.hash.digest(count.bytes(), frame);
}

void ControlSocket::queue(FrameType type, uint64_t sequence, uint64_t received,
                          std::string_view body) {
  Writer head;
  head.number(static_cast<uint32_t>(body.size())).number(static_cast<uint8_t>(type));
  head.number(sequence).number(received);
  const size_t begin = out_.size();
  out_.append(head.bytes()).append(body);
  if (!send_) return;
  const group::Digest seal = seal_of(*send_, std::string_view(out_).substr(begin));
  out_.append(reinterpret_cast<const char*>(seal.data()), kSealBytes);
}

Status ControlSocket::flush() {
  while (has_output()) {
    const std::string_view rest = std::string_view(out_).substr(out_at_);
    BRAID_ASSIGN_OR_RETURN(const size_t sent,
                           sys::send_some(fd_.get(), std::as_bytes(std::span(rest))));
    if (sent == 0) return {};
    out_at_ += sent;
    // A peer that is always a little behind never lets it run empty: what was sent must not pile up.
    if (out_at_ < out_.size() / 2) continue;
    out_.erase(0, out_at_);
    out_at_ = 0;
  }
  out_.clear();
  out_at_ = 0;
  return {};
}

Status ControlSocket::fill() {
  // What next() handed out is used by now. Moving the rest down keeps the buffer at one frame and
  // one read.
  if (in_at_ != 0) {
    std::memmove(in_.data(), in_.data() + in_at_, in_end_ - in_at_);
    in_end_ -= in_at_;
    in_at_ = 0;
  }
  if (in_.size() < in_end_ + kReadBytes) in_.resize(in_end_ + kReadBytes);
  const std::span<char> room(in_.data() + in_end_, kReadBytes);
  BRAID_ASSIGN_OR_RETURN(const size_t got, sys::recv_some(fd_.get(), std::as_writable_bytes(room)));
  in_end_ += got;
  return {};
}

Result<std::optional<Frame>> ControlSocket::next() {
  const std::string_view arrived(in_.data() + in_at_, in_end_ - in_at_);
  if (arrived.size() < kFrameHeadBytes) return std::optional<Frame>();
  Reader in(arrived);
  const auto body_bytes = in.number<uint32_t>();
  const auto type = in.number<uint8_t>();
  Frame frame;
  frame.sequence = in.number<uint64_t>();
  frame.received = in.number<uint64_t>();
  const uint32_t most = receive_ ? kMostBodyBytes : kMostGreetingBytes;
  if (body_bytes > most || type == 0 || type > static_cast<uint8_t>(kLastFrameType))
    return invalid_argument("a frame of type {} with {} bytes; {} are the limit", type, body_bytes,
                            most);
  const size_t signed_bytes = kFrameHeadBytes + body_bytes;
  const size_t frame_bytes = signed_bytes + (receive_ ? kSealBytes : 0);
  if (arrived.size() < frame_bytes) return std::optional<Frame>();
  if (receive_) {
    const group::Digest seal = seal_of(*receive_, arrived.substr(0, signed_bytes));
    const std::string_view found = arrived.substr(signed_bytes, kSealBytes);
    if (!group::is_equal(std::as_bytes(std::span(found)), std::span(seal).first(kSealBytes)))
      return invalid_argument("a frame of type {} whose seal is broken", type);
  }
  frame.type = static_cast<FrameType>(type);
  frame.body = arrived.substr(kFrameHeadBytes, body_bytes);
  in_at_ += frame_bytes;
  return std::optional(frame);
}

}  // namespace braid::engine
