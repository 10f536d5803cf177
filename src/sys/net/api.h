// TCP for the control plane and the addresses of this host. Every socket is non-blocking,
// close-on-exec and without Nagle's delay; every wait has a deadline; no call raises SIGPIPE.
//
// Threads: plain functions; a descriptor may be read by one thread and written by another.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "sys/fd.h"

namespace braid::sys {

/// An IPv4 or IPv6 address with a port.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const sockaddr* address, socklen_t length);

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool is_loopback() const;
  bool is_wildcard() const;  // 0.0.0.0 or ::
  /// "127.0.0.1" or "fe80::1%eth0"; without the port.
  std::string host() const;
  /// "127.0.0.1:29500", "[::1]:29500".
  std::string text() const;
  friend bool operator==(const Endpoint& a, const Endpoint& b);

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// Addresses of a literal ("10.0.0.1", "::1", "[::1]") or a host name, in the resolver's order,
/// never empty. unavailable when the name does not resolve. A name may take the resolver's own
/// time; literals take none.
Result<std::vector<Endpoint>> resolve(std::string_view host, uint16_t port);
/// Whether it is a literal, which means the same on every host.
bool is_literal(std::string_view host);

/// The same for who has a deadline: a name is looked up in a thread of its own, which is left behind
/// when nobody waits for it any more. Literals are there at once.
class Lookup {
 public:
  static Result<Lookup> begin(std::string_view host, uint16_t port);
  /// What resolve() says; nothing while it has not said it. Waits until the deadline.
  std::optional<Result<std::vector<Endpoint>>> wait(Deadline deadline) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Listens on `endpoint`; port 0 lets the kernel choose (see local_endpoint). exhausted when the
/// port is taken, unavailable when the address is not one of this host's, else driver.
Result<Fd> listen_on(const Endpoint& endpoint, int backlog);
Result<Endpoint> local_endpoint(int fd);
Result<Endpoint> remote_endpoint(int fd);

/// unavailable when refused: nobody listens there. timeout at the deadline, or when no way leads
/// there now, which the next moment may change.
Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline);
/// Begins to connect and does not wait: when the socket is writable, connected() has the outcome.
Result<Fd> begin_connect(const Endpoint& endpoint);
/// ok, or why not, as connect_to() says it; `endpoint` is for the message.
Status connected(int fd, const Endpoint& endpoint);
/// The next connection; timeout at the deadline (one that has passed: only what already waits).
Result<Fd> accept_on(int listener, Deadline deadline);

/// Which user the other end of a TCP connection belongs to, when that is a process of this host: the
/// kernel's own word, by sock_diag. unavailable when the other end is elsewhere or gone, or the
/// kernel does not say.
class PeerUsers {
 public:
  /// Costs one descriptor; unavailable where the kernel has no such thing.
  static Result<PeerUsers> open();
  Result<uint32_t> user_of(int fd) const;

 private:
  explicit PeerUsers(Fd socket) : socket_(std::move(socket)) {}
  Fd socket_;
};

/// All bytes or a Status: timeout, peer_lost (closed or reset), driver.
Status send_all(int fd, std::span<const std::byte> bytes, Deadline deadline);
Status recv_all(int fd, std::span<std::byte> bytes, Deadline deadline);
/// What moves without waiting: 0 when nothing does. peer_lost when the other side closed or reset.
Result<size_t> send_some(int fd, std::span<const std::byte> bytes);
Result<size_t> recv_some(int fd, std::span<std::byte> bytes);

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT) or has failed. False at the deadline.
bool poll_one(int fd, short events, Deadline deadline);
/// A deadline as poll(2) wants it: whole milliseconds, rounded up so that a wait never spins.
int poll_timeout_ms(Deadline deadline);

/// One address of one network interface that is up.
struct Interface {
  std::string name;
  Endpoint address;
  bool is_loopback = false;
};
Result<std::vector<Interface>> list_interfaces();

}  // namespace braid::sys
