#include "comm/observe/metrics_server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/units.h"
#include "sys/host/thread.h"
#include "sys/net/api.h"

namespace braid::comm {

namespace {

constexpr size_t kMostRequestBytes = 8192;
constexpr int64_t kPatienceNs = 1_s;  // with one who asks
constexpr size_t kMostVisitors = 16;
// After accept() failed, which may be for want of descriptors: whoever waits is still there then.
constexpr int64_t kAcceptPauseNs = 100'000'000;
constexpr int64_t kLongestWaitNs = 3600 * 1_s;  // while nobody asks

std::string http(std::string_view status, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, body.size(), body);
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(uint16_t port,
                                                            std::function<std::string()> page) {
  BRAID_ASSIGN_OR_RETURN(const auto here, sys::resolve("127.0.0.1", port));
  BRAID_ASSIGN_OR_RETURN(sys::Fd listener, sys::listen_on(here.front(), 128));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, sys::local_endpoint(listener.get()));
  BRAID_ASSIGN_OR_RETURN(sys::Wake wake, sys::Wake::create());
  std::unique_ptr<MetricsServer> server(
      new MetricsServer(std::move(listener), std::move(wake), at.port(), std::move(page)));
  BRAID_ASSIGN_OR_RETURN(
      server->thread_, sys::start_thread("metrics server", [raw = server.get()] { raw->loop(); }));
  return server;
}

MetricsServer::~MetricsServer() {
  wake_.signal();
  if (thread_.joinable()) thread_.join();
}

void MetricsServer::loop() {
  std::vector<Visitor> visitors;
  Deadline accepts_again = Deadline::after_ns(0);
  for (;;) {
    const bool accepts = accepts_again.passed();
    int64_t until_ns = now_ns() + (accepts ? kLongestWaitNs : kAcceptPauseNs);
    for (const Visitor& visitor : visitors) until_ns = std::min(until_ns, visitor.deadline.at_ns());
    if (!wait(visitors, accepts, Deadline::at_ns(until_ns))) return;
    std::erase_if(visitors, [this](Visitor& each) { return !attend(each); });
    if (accepts && !welcome(visitors)) accepts_again = Deadline::after_ns(kAcceptPauseNs);
  }
}

bool MetricsServer::wait(const std::vector<Visitor>& visitors, bool accepts, Deadline until) const {
  std::vector<pollfd> waited{{wake_.fd(), POLLIN, 0}};
  if (accepts) waited.push_back({listener_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors) {
    const short events = visitor.reply.empty() ? POLLIN : POLLOUT;
    waited.push_back({visitor.socket.get(), events, 0});
  }
  if (::poll(waited.data(), waited.size(), sys::poll_timeout_ms(until)) < 0)
    return true;  // a signal
  return waited.front().revents == 0;
}

bool MetricsServer::welcome(std::vector<Visitor>& visitors) const {
  for (size_t i = 0; i < kMostVisitors; ++i) {
    auto socket = sys::accept_on(listener_.get(), Deadline::after_ns(0));
    if (!socket.ok()) return socket.status().code() == Code::kTimeout;  // nobody waits
    if (visitors.size() == kMostVisitors) visitors.erase(visitors.begin());
    visitors.push_back(
        {sys::PrivateFd(std::move(socket).value()), Deadline::after_ns(kPatienceNs), "", "", 0});
  }
  return true;
}

bool MetricsServer::attend(Visitor& visitor) const {
  if (visitor.deadline.passed()) return false;
  std::array<std::byte, 1024> some{};
  while (visitor.reply.empty()) {
    const auto bytes = sys::recv_some(visitor.socket.get(), some);
    if (!bytes.ok()) return false;
    if (bytes.value() == 0) return true;
    visitor.request.append(reinterpret_cast<const char*>(some.data()), bytes.value());
    if (visitor.request.find("\r\n\r\n") != std::string::npos ||
        visitor.request.size() >= kMostRequestBytes)
      visitor.reply = answer(visitor.request);
  }
  const auto rest = std::as_bytes(std::span(visitor.reply)).subspan(visitor.num_sent);
  const auto sent = sys::send_some(visitor.socket.get(), rest);
  if (!sent.ok()) return false;
  visitor.num_sent += sent.value();
  return visitor.num_sent < visitor.reply.size();
}

std::string MetricsServer::answer(const std::string& request) const {
  const std::string_view line = std::string_view(request).substr(0, request.find("\r\n"));
  if (!line.starts_with("GET ")) return http("405 Method Not Allowed", "GET alone is served\n");
  const std::string_view path = line.substr(4, line.find_first_of(" ?", 4) - 4);
  if (path == "/metrics") return http("200 OK", page_());
  return http("404 Not Found", "the page is /metrics\n");
}

}  // namespace braid::comm
