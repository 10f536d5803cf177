#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/units.h"
#include "sys/error_text.h"
#include "sys/net/api.h"

namespace braid::sys {

namespace {

Status net_error(Code code, std::string_view what, int error) {
  return {code, fmt::format("{}: {}", what, error_text(error))};
}

// The host itself says that nobody listens, as of a process that has ended; or no way leads there
// now, which says nothing of the process: a link that is down for two seconds comes back.
Code code_of_connect(int error) {
  switch (error) {
    case ECONNREFUSED: return Code::kUnavailable;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case ECONNRESET:
    case ETIMEDOUT: return Code::kTimeout;
    default: return Code::kDriver;
  }
}

bool has_gone(int error) { return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT; }

void set_no_delay(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on,
                     sizeof on);  // advice: control frames are small
}

Result<Fd> open_socket(int family) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open())
    return net_error(errno == EMFILE || errno == ENFILE ? Code::kExhausted : Code::kDriver,
                     "socket", errno);
  set_no_delay(fd.get());
  return fd;
}

int pending_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

// A client that knocks on a closed port of its own host can, by chance of the port the kernel picks
// for it, connect to itself (TCP simultaneous open). That is nobody.
bool is_self_connected(int fd) {
  auto local = local_endpoint(fd), remote = remote_endpoint(fd);
  return local.ok() && remote.ok() && *local == *remote;
}

}  // namespace

Result<Fd> listen_on(const Endpoint& endpoint, int backlog) {
  BRAID_ASSIGN_OR_RETURN(Fd fd, open_socket(endpoint.family()));
  const int on = 1;  // a port in TIME_WAIT is free; one that somebody listens on is not
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const std::string what = "listen on " + endpoint.text();
  if (::bind(fd.get(), endpoint.address(), endpoint.length()) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) return net_error(Code::kExhausted, what, error);
    return net_error(error == EADDRNOTAVAIL || error == EACCES ? Code::kUnavailable : Code::kDriver,
                     what, error);
  }
  return fd;
}

Result<Endpoint> local_endpoint(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(fd, address, &length) != 0)
    return net_error(Code::kDriver, "getsockname", errno);
  return Endpoint(address, length);
}

Result<Endpoint> remote_endpoint(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (::getpeername(fd, address, &length) != 0)
    return net_error(Code::kDriver, "getpeername", errno);
  return Endpoint(address, length);
}

Result<Fd> begin_connect(const Endpoint& endpoint) {
  BRAID_ASSIGN_OR_RETURN(Fd fd, open_socket(endpoint.family()));
  const int error = ::connect(fd.get(), endpoint.address(), endpoint.length()) == 0 ? 0 : errno;
  if (error != 0 && error != EINPROGRESS && error != EINTR)
    return net_error(code_of_connect(error), "connect to " + endpoint.text(), error);
  return fd;
}

Status connected(int fd, const Endpoint& endpoint) {
  const std::string what = "connect to " + endpoint.text();
  const int error = pending_error(fd);
  if (error != 0) return net_error(code_of_connect(error), what, error);
  if (is_self_connected(fd)) return net_error(Code::kUnavailable, what, ECONNREFUSED);
  return {};
}

Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(Fd fd, begin_connect(endpoint));
  if (!poll_one(fd.get(), POLLOUT, deadline))
    return timeout("connect to {}: no answer", endpoint.text());
  BRAID_RETURN_IF_ERROR(connected(fd.get(), endpoint));
  return fd;
}

Result<Fd> accept_on(int listener, Deadline deadline) {
  while (true) {
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.is_open()) {
      set_no_delay(fd.get());
      return fd;
    }
    const int error = errno;
    if (error == EMFILE || error == ENFILE) return net_error(Code::kExhausted, "accept", error);
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error != EAGAIN && error != EWOULDBLOCK) return net_error(Code::kDriver, "accept", error);
    if (!poll_one(listener, POLLIN, deadline)) return timeout("accept: nobody connected");
  }
}

Result<size_t> send_some(int fd, std::span<const std::byte> bytes) {
  if (bytes.empty()) return size_t{0};
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
  return net_error(has_gone(errno) ? Code::kPeerLost : Code::kDriver, "send", errno);
}

Result<size_t> recv_some(int fd, std::span<std::byte> bytes) {
  if (bytes.empty()) return size_t{0};
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return peer_lost("the other side closed the connection");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
  return net_error(has_gone(errno) ? Code::kPeerLost : Code::kDriver, "recv", errno);
}

Status send_all(int fd, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    BRAID_ASSIGN_OR_RETURN(const size_t sent, send_some(fd, bytes));
    bytes = bytes.subspan(sent);
    if (sent == 0 && !poll_one(fd, POLLOUT, deadline))
      return timeout("send: {} bytes left", bytes.size());
  }
  return {};
}

Status recv_all(int fd, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    BRAID_ASSIGN_OR_RETURN(const size_t got, recv_some(fd, bytes));
    bytes = bytes.subspan(got);
    if (got == 0 && !poll_one(fd, POLLIN, deadline))
      return timeout("receive: {} bytes missing", bytes.size());
  }
  return {};
}

int poll_timeout_ms(Deadline deadline) {
  const int64_t left_ms = (deadline.left_ns() + 1_ms - 1) / 1_ms;
  return static_cast<int>(std::min<int64_t>(left_ms, 1'000'000));
}

bool poll_one(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, poll_timeout_ms(deadline));
    if (ready > 0) return true;
    if (deadline.passed()) return false;
  }
}

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return net_error(Code::kDriver, "getifaddrs", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back(
        {one->ifa_name, Endpoint(one->ifa_addr, length), (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

}  // namespace braid::sys
