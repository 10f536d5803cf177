// One control connection: frames in, frames out, never blocking. Both the store and the ranks pump
// it from their poll loops.
//
// Threads: one. The rank's side lets other threads queue frames through a lock of its own
// (member.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "group/frame_seal.h"
#include "group/wire.h"
#include "sys/net/private_fd.h"

namespace braid::group {

class Channel {
 public:
  explicit Channel(sys::Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }
  /// The other side has proved itself: from now on frames are sealed, both ways, and may be as long
  /// as a member's.
  void seal(std::string_view send_key, std::string_view receive_key);

  /// One or several whole frames, in the clear.
  void queue(std::string_view frames);
  bool has_output() const { return out_at_ < out_.size(); }
  size_t queued_bytes() const { return out_.size() - out_at_; }

  /// Sends what the socket takes now.
  Status flush();
  /// Reads what has arrived, at most `kReadBytes` a call. peer_lost at the end of the stream.
  Status fill();
  /// The next whole frame; its body is valid until the next call of next() or fill(). Garbage, and a
  /// frame that the other end did not seal as its next, are final.
  Frame next();

 private:
  static constexpr size_t kReadBytes = 65536;
  sys::PrivateFd fd_;
  uint32_t max_body_bytes_ = kMaxGreetingBytes;
  std::optional<FrameSeal> seal_, open_;
  std::vector<std::byte> in_;
  size_t in_at_ = 0;
  std::string out_;
  size_t out_at_ = 0;
};

}  // namespace braid::group
