#include "engine/dial.h"

#include <poll.h>

#include <algorithm>

namespace braid::engine {
namespace {
constexpr int64_t kGreetingNs = 1'000'000'000;    // for a handshake, of whoever took the connection
constexpr int64_t kFirstRoundNs = 1'000'000'000;  // in which every address is tried once
constexpr int64_t kLeastConnectNs = 30'000'000;
constexpr int64_t kMostConnectNs = 1'000'000'000;
constexpr int64_t kPauseNs = 50'000'000;  // after one round of all addresses

// "10.0.0.1:4242", "[::1]:4242"
Result<sys::Endpoint> parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon != std::string::npos)
    for (const char c : text.substr(colon + 1)) port = port * 10 + (c - '0');
  if (colon == std::string::npos || port <= 0 || port > 65535)
    return invalid_argument("'{}' is no address with a port", text);
  BRAID_ASSIGN_OR_RETURN(const auto found,
                         sys::resolve(text.substr(0, colon), static_cast<uint16_t>(port)));
  return found.front();
}
}  // namespace

// Addresses share the first round: a host may name eight that are routed nowhere from here, each
// silent until it is given up, and the lease is 5 s. A network may be slow: each round has twice
// the time of the one before.
int64_t Dial::connect_ns() const {
  const auto share = kFirstRoundNs / static_cast<int64_t>(endpoints_.size());
  const int64_t of_this_round = std::max(share, kLeastConnectNs) << std::min(num_rounds_, 5);
  return std::min(of_this_round, kMostConnectNs);
}

Status Dial::resolve_all() {
  for (const std::string& text : target_.endpoints) {
    BRAID_ASSIGN_OR_RETURN(const sys::Endpoint endpoint, parse(text));
    endpoints_.push_back(endpoint);
  }
  if (endpoints_.empty()) return invalid_argument("its address names no port");
  at_ = first_ %= endpoints_.size();
  return {};
}

Dial::Outcome Dial::failed(int64_t now, Status why) {
  connecting_.reset();
  socket_.reset();
  is_connected_ = false;
  const Code code = why.code();
  why_ = std::move(why);
  // A proof that ends all hope: it will not have us back.
  if (code == Code::kPeerLost && handshake_) return Outcome::kRefused;
  if (code == Code::kUnsupported) return Outcome::kRefused;
  handshake_.reset();
  num_refused_ = code == Code::kUnavailable ? num_refused_ + 1 : 0;
  if (num_refused_ >= endpoints_.size()) return Outcome::kRefused;
  at_ = (at_ + 1) % endpoints_.size();
  if (at_ == first_) {
    ++num_rounds_;
    next_attempt_ns_ = now + kPauseNs;
  }
  return Outcome::kUnderWay;
}

Dial::Outcome Dial::begin(int64_t now, uint64_t received) {
  if (endpoints_.empty()) {
    if (const Status resolved = resolve_all(); !resolved.ok()) {
      why_ = resolved;
      return Outcome::kRefused;
    }
  }
  if (now < next_attempt_ns_) return Outcome::kUnderWay;
  attempt_ends_ns_ = now + connect_ns();
  Result<sys::Fd> fd = sys::begin_connect(endpoints_[at_]);
  if (!fd.ok()) return failed(now, fd.status());
  connecting_ = sys::PrivateFd(std::move(fd).value());
  handshake_.emplace(secret_, self_, target_, session_, received);
  return Outcome::kUnderWay;
}

Dial::Outcome Dial::step(int64_t now, uint64_t received) {
  if (!connecting_.is_open() && !socket_) return begin(now, received);
  if (now > attempt_ends_ns_)
    return failed(now, timeout("{} does not answer", endpoints_[at_].text()));
  if (connecting_.is_open()) {
    if (!sys::poll_one(connecting_.get(), POLLOUT, Deadline::at_ns(0))) return Outcome::kUnderWay;
    if (const Status s = sys::connected(connecting_.get(), endpoints_[at_]); !s.ok())
      return failed(now, s);
    socket_.emplace(std::move(connecting_));
    attempt_ends_ns_ = now + kGreetingNs;
    if (const Status s = handshake_->start(*socket_); !s.ok()) return failed(now, s);
  }
  return converse(now);
}

Dial::Outcome Dial::converse(int64_t now) {
  Status broken = socket_->fill();
  while (!handshake_->is_done()) {
    Result<std::optional<Frame>> frame = socket_->next();
    if (!frame.ok()) return failed(now, frame.status());
    if (!frame->has_value()) break;
    if (const Status s = handshake_->on_frame(*socket_, **frame); !s.ok()) return failed(now, s);
  }
  if (handshake_->is_done()) return Outcome::kDone;
  if (broken.ok()) broken = socket_->flush();
  // A socket that closes in the midst of a greeting is no word of the engine we look for: the
  // network may have been cut. If its process has ended, the next try is refused.
  if (!broken.ok()) return failed(now, driver_error("{}", broken.message()));
  return Outcome::kUnderWay;
}

ControlSocket Dial::take_socket() {
  ControlSocket socket = std::move(*socket_);
  socket_.reset();
  return socket;
}

int Dial::fd() const {
  if (connecting_.is_open()) return connecting_.get();
  return socket_ ? socket_->fd() : -1;
}

short Dial::events() const {
  if (connecting_.is_open()) return POLLOUT;
  return socket_ && socket_->has_output() ? POLLIN | POLLOUT : POLLIN;
}

}  // namespace braid::engine
