// One TCP connection between two engines: frames in, frames out, never blocking. A forked child does
// not get it: it would keep the connection open when we are dead.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/frame.h"
#include "group/keyed_hash.h"
#include "sys/net/private_fd.h"

namespace braid::engine {

class ControlSocket {
 public:
  explicit ControlSocket(sys::Fd fd) : fd_(std::move(fd)) {}
  explicit ControlSocket(sys::PrivateFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  /// From now on frames are sealed, in both directions.
  void seal(std::string_view send_key, std::string_view receive_key);

  void queue(FrameType type, uint64_t sequence, uint64_t received, std::string_view body);
  bool has_output() const { return out_at_ < out_.size(); }
  /// Bytes of frames that were queued, also of one that is sent in part.
  size_t output_bytes() const { return out_.size(); }
  /// Sends what the socket takes now. peer_lost when it is closed.
  Status flush();
  /// Reads what has arrived. peer_lost at the end of the stream.
  Status fill();
  /// The next whole frame, none when there is none yet. invalid_argument: garbage or a broken seal;
  /// nothing after it can be trusted.
  Result<std::optional<Frame>> next();

 private:
  static constexpr size_t kReadBytes = 1 << 16;

  struct Direction {
    group::KeyedHash hash;
    uint64_t count = 0;
  };
  group::Digest seal_of(Direction& direction, std::string_view frame);

  sys::PrivateFd fd_;
  std::optional<Direction> send_, receive_;
  std::vector<char> in_;
  size_t in_at_ = 0, in_end_ = 0;
  std::string out_;
  size_t out_at_ = 0;
};

}  // namespace braid::engine
