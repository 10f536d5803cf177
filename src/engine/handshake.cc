#include "engine/handshake.h"

#include <cstring>

#include "engine/codec.h"
#include "group/keyed_hash.h"
#include "sys/host/api.h"

namespace braid::engine {
namespace {

constexpr uint32_t kMagic = 0x45445242;  // "BRDE"
constexpr uint16_t kProtocolVersion = 3;
constexpr size_t kNonceBytes = 32;
constexpr uint64_t kUnknownSession = UINT64_MAX;

Result<std::string> make_hello(const Secret& secret, const Incarnation& self) {
  std::string nonce(kNonceBytes, '\0');
  BRAID_RETURN_IF_ERROR(sys::random_bytes(std::as_writable_bytes(std::span(nonce))));
  Writer out;
  out.number(kMagic).number(kProtocolVersion).raw(view(secret.job())).raw(nonce).raw(view(self));
  return out.take();
}

struct Hello {
  uint16_t version = 0;
  JobMark job{};
  Incarnation incarnation{};
};

Result<Hello> read_hello(std::string_view body) {
  Reader in(body);
  Hello hello;
  if (in.number<uint32_t>() != kMagic)
    return invalid_argument("what answers there is no engine of braid");
  hello.version = in.number<uint16_t>();
  const std::string_view job = in.raw(hello.job.size());
  in.raw(kNonceBytes);
  const std::string_view incarnation = in.raw(hello.incarnation.size());
  if (hello.version != kProtocolVersion)
    return unsupported("it speaks version {} of the protocol, this build {}", hello.version,
                       kProtocolVersion);
  if (!in.is_whole()) return invalid_argument("a hello of {} bytes", body.size());
  std::memcpy(hello.job.data(), job.data(), job.size());
  std::memcpy(hello.incarnation.data(), incarnation.data(), incarnation.size());
  return hello;
}

std::string mac_of(const Secret& secret, std::string_view label, const std::string& source_hello,
                   const std::string& target_hello, std::string_view body) {
  Writer text;
  text.text(label).text(source_hello).text(target_hello).text(body);
  const group::Digest digest = group::hmac(secret.handshake_key(), text.bytes());
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string make_proof(const Secret& secret, std::string_view label,
                       const std::string& source_hello, const std::string& target_hello,
                       const SessionId& session, uint64_t received) {
  Writer out;
  out.raw(view(session)).number(received);
  out.raw(mac_of(secret, label, source_hello, target_hello, out.bytes()));
  return out.take();
}

struct Proof {
  SessionId session{};
  uint64_t received = 0;
};

Result<Proof> read_proof(const Secret& secret, std::string_view label,
                         const std::string& source_hello, const std::string& target_hello,
                         std::string_view body) {
  Reader in(body);
  Proof proof;
  const std::string_view session = in.raw(proof.session.size());
  proof.received = in.number<uint64_t>();
  const std::string_view found = in.raw(sizeof(group::Digest));
  if (!in.is_whole()) return invalid_argument("a proof of {} bytes", body.size());
  const std::string_view told = body.substr(0, body.size() - found.size());
  const std::string mac = mac_of(secret, label, source_hello, target_hello, told);
  if (!group::is_equal(std::as_bytes(std::span(found)), std::as_bytes(std::span(mac))))
    return invalid_argument("a proof that does not fit: the other side does not hold our token");
  std::memcpy(proof.session.data(), session.data(), session.size());
  return proof;
}

constexpr std::string_view kSourceLabel = "source", kTargetLabel = "target";

std::string socket_key(const Secret& secret, std::string_view label,
                       const std::string& source_hello, const std::string& target_hello) {
  return mac_of(secret, label, source_hello, target_hello, "frames");
}

}  // namespace

SourceHandshake::SourceHandshake(const Secret& secret, const Incarnation& self,
                                 const Address& target, const SessionId& session, uint64_t received)
    : secret_(secret), self_(self), target_(target), session_(session), received_(received) {}

Status SourceHandshake::start(ControlSocket& socket) {
  BRAID_ASSIGN_OR_RETURN(own_hello_, make_hello(secret_, self_));
  socket.queue(FrameType::kHello, 0, 0, own_hello_);
  return {};
}

Status SourceHandshake::on_frame(ControlSocket& socket, const Frame& frame) {
  if (frame.type == FrameType::kHello && peer_hello_.empty()) return on_hello(socket, frame);
  if (frame.type == FrameType::kProof && !peer_hello_.empty()) return on_proof(socket, frame);
  return invalid_argument("a frame of type {} in a handshake", static_cast<int>(frame.type));
}

Status SourceHandshake::on_hello(ControlSocket& socket, const Frame& frame) {
  BRAID_ASSIGN_OR_RETURN(const Hello hello, read_hello(frame.body));
  if (hello.job != secret_.job())
    return unavailable("an engine of another job listens there (its token is not ours)");
  if (hello.incarnation != target_.incarnation)
    return unavailable("another engine listens there now: '{}' ended or was started again",
                       target_.name);
  peer_hello_ = frame.body;
  introduction_.peer = hello.incarnation;
  introduction_.session = session_;
  socket.queue(FrameType::kProof, 0, 0,
               make_proof(secret_, kSourceLabel, own_hello_, peer_hello_, session_, received_));
  return {};
}

Status SourceHandshake::on_proof(ControlSocket& socket, const Frame& frame) {
  BRAID_ASSIGN_OR_RETURN(const Proof proof,
                         read_proof(secret_, kTargetLabel, own_hello_, peer_hello_, frame.body));
  if (proof.session != session_) return invalid_argument("a proof for another session");
  if (proof.received == kUnknownSession)
    return peer_lost("'{}' has given this connection up: it heard nothing for its lease",
                     target_.name);
  introduction_.peer_received = proof.received;
  socket.seal(socket_key(secret_, kSourceLabel, own_hello_, peer_hello_),
              socket_key(secret_, kTargetLabel, own_hello_, peer_hello_));
  is_done_ = true;
  return {};
}

Status TargetHandshake::on_frame(ControlSocket& socket, const Frame& frame, const Recall& recall) {
  if (frame.type == FrameType::kHello && peer_hello_.empty()) return on_hello(socket, frame);
  if (frame.type == FrameType::kProof && !peer_hello_.empty())
    return on_proof(socket, frame, recall);
  return invalid_argument("a frame of type {} in a handshake", static_cast<int>(frame.type));
}

Status TargetHandshake::on_hello(ControlSocket& socket, const Frame& frame) {
  BRAID_ASSIGN_OR_RETURN(const Hello hello, read_hello(frame.body));
  // Answered before the job is looked at, so that the other side can say what is wrong.
  BRAID_ASSIGN_OR_RETURN(own_hello_, make_hello(secret_, self_));
  socket.queue(FrameType::kHello, 0, 0, own_hello_);
  if (hello.job != secret_.job()) return unavailable("an engine of another job");
  peer_hello_ = frame.body;
  introduction_.peer = hello.incarnation;
  return {};
}

Status TargetHandshake::on_proof(ControlSocket& socket, const Frame& frame, const Recall& recall) {
  BRAID_ASSIGN_OR_RETURN(const Proof proof,
                         read_proof(secret_, kSourceLabel, peer_hello_, own_hello_, frame.body));
  introduction_.session = proof.session;
  introduction_.peer_received = proof.received;
  const std::optional<uint64_t> received = recall(introduction_);
  socket.queue(FrameType::kProof, 0, 0,
               make_proof(secret_, kTargetLabel, peer_hello_, own_hello_, proof.session,
                          received.value_or(kUnknownSession)));
  if (!received) return peer_lost("a session that is not known here");
  socket.seal(socket_key(secret_, kTargetLabel, peer_hello_, own_hello_),
              socket_key(secret_, kSourceLabel, peer_hello_, own_hello_));
  is_done_ = true;
  return {};
}

}  // namespace braid::engine
