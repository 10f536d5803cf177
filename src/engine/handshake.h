// How two engines prove to each other that they hold the job's secret, on every new socket.
//
//   source                                target
//   HELLO {version, job, nonce,     ----> the same job? else the socket is closed
//          incarnation}             <---- HELLO {the same of the target}
//   PROOF {session, received, mac}  ----> the mac fits: the source holds the secret, and both
//                                         hellos are what each sent
//                                   <---- PROOF {session, received, mac}, or with received = none:
//                                         the session is not known here
//
// A mac is an HMAC under the secret over a label of the side, both hellos and the body; the fresh
// nonces keep an old one from being played back, the labels keep one side's from being the other's.
// After the target's proof both sides seal every frame under keys that follow from both hellos.
//
// `session` names what outlives a socket: the source's connection to the target. `received` tells
// the other side from which frame on to send again (session.h).
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/control_socket.h"
#include "engine/descriptor.h"

namespace braid::engine {

using SessionId = std::array<char, 16>;

/// What a finished handshake tells.
struct Introduction {
  Incarnation peer{};
  SessionId session{};
  uint64_t peer_received = 0;
};

/// The source's half: on_frame() for each frame that comes, until done() or a Status.
class SourceHandshake {
 public:
  SourceHandshake(const Secret& secret, const Incarnation& self, const Address& target,
                  const SessionId& session, uint64_t received);
  Status start(ControlSocket& socket);
  /// unavailable: another job's engine, or another incarnation, listens at this address (another one
  /// of the target may still be its own). peer_lost: the target does not know the session any more. invalid_argument: no engine of ours, or a proof that does not fit.
  Status on_frame(ControlSocket& socket, const Frame& frame);
  bool is_done() const { return is_done_; }
  const Introduction& introduction() const { return introduction_; }

 private:
  Status on_hello(ControlSocket& socket, const Frame& frame);
  Status on_proof(ControlSocket& socket, const Frame& frame);

  const Secret& secret_;
  const Incarnation self_;
  const Address& target_;
  const SessionId session_;
  const uint64_t received_;
  std::string own_hello_, peer_hello_;
  bool is_done_ = false;
  Introduction introduction_;
};

/// The target's half.
class TargetHandshake {
 public:
  /// Answers how many frames of that session were received here; none: it is not known, and since
  /// the source has received something of it, it cannot begin.
  using Recall = std::function<std::optional<uint64_t>(const Introduction& asked)>;

  TargetHandshake(const Secret& secret, const Incarnation& self) : secret_(secret), self_(self) {}
  Status on_frame(ControlSocket& socket, const Frame& frame, const Recall& recall);
  bool is_done() const { return is_done_; }
  const Introduction& introduction() const { return introduction_; }

 private:
  Status on_hello(ControlSocket& socket, const Frame& frame);
  Status on_proof(ControlSocket& socket, const Frame& frame, const Recall& recall);

  const Secret& secret_;
  const Incarnation self_;
  std::string own_hello_, peer_hello_;
  bool is_done_ = false;
  Introduction introduction_;
};

}  // namespace braid::engine
