// A session: frames in order, each exactly once, over sockets that come and go.
//
// A network that is cut for a moment takes a socket with it, and nobody knows which of the last
// frames arrived. So every frame has a number, the sender keeps it until the other side says that
// it has it, and a new socket begins with both sides saying what they have (handshake.h): the rest
// is sent again, and what comes twice is dropped. All above this can take frames for granted.
//
// While attached, both sides beat: a socket that carries nothing at all for some time is no good.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "engine/control_socket.h"

namespace braid::engine {

inline constexpr int64_t kBeatNs = 250'000'000;
/// A socket that was silent for four beats is no good.
inline constexpr int64_t kDeadSocketNs = 4 * kBeatNs;

class Session {
 public:
  using Handler = std::function<Status(const Frame&)>;

  Session() : heard_at_ns_(now_ns()) {}

  /// The socket of a finished handshake; replaces the one before.
  void attach(ControlSocket socket, uint64_t peer_received);
  void detach() { socket_.reset(); }
  bool is_attached() const { return socket_.has_value(); }
  int fd() const { return socket_ ? socket_->fd() : -1; }

  /// Queues a frame, of kMostBodyBytes at most; it leaves at the next pump().
  void send(FrameType type, std::string body);
  /// Sends and receives what can be without waiting, and gives each new frame to `handle`. Not ok:
  /// the socket has broken (and is detached; a session goes on without), or what `handle` said.
  Status pump(const Handler& handle);
  /// Sends only.
  Status flush();
  /// Sends a beat when none is due to be late.
  void beat(int64_t now);

  /// The last sequence that came.
  uint64_t received() const { return received_; }
  int64_t heard_at_ns() const { return heard_at_ns_; }
  size_t num_unacknowledged() const { return kept_.size(); }
  bool has_output() const { return socket_ && socket_->has_output(); }

 private:
  struct Kept {
    uint64_t sequence = 0;
    FrameType type = FrameType::kBeat;
    std::string body;
  };
  void acknowledge(uint64_t received);
  Status take(const Frame& frame, const Handler& handle);
  Status broken(const Status& why);

  std::optional<ControlSocket> socket_;
  std::deque<Kept> kept_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  int64_t heard_at_ns_ = 0;
  int64_t beat_at_ns_ = 0;
};

}  // namespace braid::engine
