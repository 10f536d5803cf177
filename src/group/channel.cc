#include "group/channel.h"

#include "sys/net/api.h"

namespace braid::group {

void Channel::seal(std::string_view send_key, std::string_view receive_key) {
  seal_.emplace(send_key, FrameSeal::Use::kSeal);
  open_.emplace(receive_key, FrameSeal::Use::kOpen);
  max_body_bytes_ = kMaxBodyBytes;
}

void Channel::queue(std::string_view frames) {
  if (!seal_) return (void)out_.append(frames);
  while (!frames.empty()) {
    const size_t bytes = first_frame_bytes(frames);
    seal_->seal(frames.substr(0, bytes), out_);
    frames.remove_prefix(bytes);
  }
}

Status Channel::flush() {
  while (has_output()) {
    const std::string_view rest = std::string_view(out_).substr(out_at_);
    BRAID_ASSIGN_OR_RETURN(const size_t sent,
                           sys::send_some(fd_.get(), std::as_bytes(std::span(rest))));
    if (sent == 0) return {};
    out_at_ += sent;
  }
  out_.clear();
  out_at_ = 0;
  return {};
}

Status Channel::fill() {
  // What next() handed out is used by now. Moving the rest down keeps the buffer at one frame and
  // one read.
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(in_at_));
  in_at_ = 0;
  const size_t had = in_.size();
  in_.resize(had + kReadBytes);
  auto got = sys::recv_some(fd_.get(), std::span(in_).subspan(had));
  in_.resize(had + (got.ok() ? *got : 0));
  return got.status();
}

Frame Channel::next() {
  const std::span<std::byte> bytes = std::span(in_).subspan(in_at_);
  Frame frame = parse_frame(bytes, max_body_bytes_, open_ ? kSealBytes : 0);
  if (frame.state != Frame::State::kComplete) return frame;
  if (open_ && !open_->open(bytes.first(frame.frame_bytes)))
    frame.state = Frame::State::kForged;
  else
    in_at_ += frame.frame_bytes;
  return frame;
}

}  // namespace braid::group
