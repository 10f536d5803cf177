#include "comm/observe/metrics_server.h"

#include <poll.h>

#include <array>
#include <atomic>
#include <span>
#include <string_view>

#include "base/units.h"
#include "sys/net/api.h"

namespace braid::comm {

namespace {

constexpr size_t kMostRequestBytes = 8192;
constexpr int64_t kPatienceNs = 1_s;  // with one who asks

std::string http(std::string_view status, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, body.size(), body);
}

/// All of a request's head; what there is of it when it does not end in time.
std::string read_head(int connection, Deadline deadline) {
  std::string head;
  std::array<std::byte, 1024> some{};
  while (head.find("\r\n\r\n") == std::string::npos && head.size() < kMostRequestBytes) {
    if (!sys::poll_one(connection, POLLIN, deadline)) break;
    const auto bytes = sys::recv_some(connection, some);
    if (!bytes.ok()) break;
    head.append(reinterpret_cast<const char*>(some.data()), bytes.value());
  }
  return head;
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(uint16_t port,
                                                            std::function<std::string()> page) {
  BRAID_ASSIGN_OR_RETURN(const auto here, sys::resolve("127.0.0.1", port));
  BRAID_ASSIGN_OR_RETURN(sys::Fd listener, sys::listen_on(here.front(), 8));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, sys::local_endpoint(listener.get()));
  BRAID_ASSIGN_OR_RETURN(sys::Wake wake, sys::Wake::create());
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(std::move(listener), std::move(wake), at.port(), std::move(page)));
}

MetricsServer::MetricsServer(sys::Fd listener, sys::Wake wake, uint16_t port,
                             std::function<std::string()> page)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      port_(port),
      page_(std::move(page)),
      thread_([this] { loop(); }) {}

MetricsServer::~MetricsServer() {
  wake_.signal();
  thread_.join();
}

void MetricsServer::loop() {
  for (;;) {
    std::array<pollfd, 2> waited = {{{listener_.get(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}}};
    if (::poll(waited.data(), waited.size(), -1) < 0) continue;  // a signal
    if (waited[1].revents != 0) return;
    if (waited[0].revents == 0) continue;
    const auto connection = sys::accept_on(listener_.get(), Deadline::after_ns(0));
    if (connection.ok()) serve(connection.value().get());
  }
}

void MetricsServer::serve(int connection) const {
  const Deadline deadline = Deadline::after_ns(kPatienceNs);
  const std::string reply = answer(read_head(connection, deadline));
  (void)sys::send_all(connection, std::as_bytes(std::span(reply)), deadline);
}

std::string MetricsServer::answer(const std::string& request) const {
  const std::string_view line = std::string_view(request).substr(0, request.find("\r\n"));
  if (!line.starts_with("GET ")) return http("405 Method Not Allowed", "GET alone is served\n");
  const std::string_view path = line.substr(4, line.find_first_of(" ?", 4) - 4);
  if (path == "/metrics") return http("200 OK", page_());
  return http("404 Not Found", "the page is /metrics\n");
}

}  // namespace braid::comm
