#include "group/channel.h"

#include "sys/net/api.h"

namespace braid::group {

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
  const Frame frame = parse_frame(std::span<const std::byte>(in_).subspan(in_at_), max_body_bytes_);
  in_at_ += frame.frame_bytes;
  return frame;
}

}  // namespace braid::group
