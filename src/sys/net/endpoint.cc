#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>

#include "sys/host/thread.h"
#include "sys/net/api.h"

namespace braid::sys {

namespace {

const sockaddr_in& as_v4(const sockaddr_storage& s) {
  return reinterpret_cast<const sockaddr_in&>(s);
}
const sockaddr_in6& as_v6(const sockaddr_storage& s) {
  return reinterpret_cast<const sockaddr_in6&>(s);
}

bool is_v4_loopback(uint32_t network_order) { return (ntohl(network_order) >> 24) == 127; }

// "[::1]" is how people write an IPv6 address beside a port; the resolver wants the bare one.
std::string without_brackets(std::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::string(host);
}

}  // namespace

Endpoint::Endpoint(const sockaddr* address, socklen_t length)
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

uint16_t Endpoint::port() const {
  return ntohs(family() == AF_INET6 ? as_v6(storage_).sin6_port : as_v4(storage_).sin_port);
}

void Endpoint::set_port(uint16_t port) {
  // The port lies at the same place in both forms.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  reinterpret_cast<sockaddr_in&>(storage_).sin_port = htons(port);
}

bool Endpoint::is_loopback() const {
  if (family() == AF_INET) return is_v4_loopback(as_v4(storage_).sin_addr.s_addr);
  if (family() != AF_INET6) return false;
  const in6_addr& a = as_v6(storage_).sin6_addr;
  if (IN6_IS_ADDR_LOOPBACK(&a)) return true;
  uint32_t mapped = 0;
  std::memcpy(&mapped, a.s6_addr + 12, sizeof mapped);
  return IN6_IS_ADDR_V4MAPPED(&a) && is_v4_loopback(mapped);
}

bool Endpoint::is_wildcard() const {
  if (family() == AF_INET) return as_v4(storage_).sin_addr.s_addr == INADDR_ANY;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&as_v6(storage_).sin6_addr);
}

std::string Endpoint::host() const {
  char text[NI_MAXHOST] = "";
  if (::getnameinfo(address(), length_, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
    return "?";
  return text;
}

std::string Endpoint::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                              : fmt::format("{}:{}", host(), port());
}

bool operator==(const Endpoint& a, const Endpoint& b) {
  return a.family() == b.family() && a.port() == b.port() && a.host() == b.host();
}

namespace {

Result<std::vector<Endpoint>> look_up(const std::string& name, uint16_t port, int flags) {
  if (name.empty()) return invalid_argument("address: empty host name");
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(name.c_str(), nullptr, &hints, &list);
  if (rc != 0) return unavailable("address {}: does not resolve: {}", name, ::gai_strerror(rc));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, &::freeaddrinfo);
  std::vector<Endpoint> found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Endpoint endpoint(one->ai_addr, one->ai_addrlen);
    endpoint.set_port(port);
    if (std::find(found.begin(), found.end(), endpoint) == found.end()) found.push_back(endpoint);
  }
  if (found.empty()) return unavailable("address {}: the resolver gave no address", name);
  return found;
}

}  // namespace

Result<std::vector<Endpoint>> resolve(std::string_view host, uint16_t port) {
  return look_up(without_brackets(host), port, 0);
}

bool is_literal(std::string_view host) {
  return look_up(without_brackets(host), 0, AI_NUMERICHOST).ok();
}

struct Lookup::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<std::vector<Endpoint>>> answer;
};

Result<Lookup> Lookup::begin(std::string_view host, uint16_t port) {
  const std::string name = without_brackets(host);
  Lookup lookup;
  lookup.state_ = std::make_shared<State>();
  auto literal = look_up(name, port, AI_NUMERICHOST);
  if (literal.ok() || name.empty()) {
    lookup.state_->answer = std::move(literal);
    return lookup;
  }
  const auto body = [state = lookup.state_, name, port] {
    auto answer = look_up(name, port, 0);
    const std::lock_guard lock(state->mutex);
    state->answer = std::move(answer);
    state->changed.notify_all();
  };
  BRAID_ASSIGN_OR_RETURN(std::thread thread, start_thread("resolver of names", body));
  thread.detach();
  return lookup;
}

std::optional<Result<std::vector<Endpoint>>> Lookup::wait(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  while (!state_->answer && !deadline.passed())
    state_->changed.wait_for(
        lock, std::chrono::nanoseconds(std::min<int64_t>(deadline.left_ns(), 1'000'000'000)));
  return state_->answer;
}

}  // namespace braid::sys
