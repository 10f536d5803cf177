#include "comm/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <set>
#include <sstream>
#include <thread>

#include "comm/observe/metrics_server.h"
#include "comm/observe/observer.h"
#include "support/alone.h"
#include "support/observed.h"
#include "sys/net/api.h"

namespace braid::comm {
namespace {

using plan::Op;
using testing::HasSubstr;
using testing::Not;

CommCounts counts_of(const std::string& name = "comm0") {
  CommCounts counts{test::facts_of(name, 2), {}};
  counts.tally.links.resize(counts.facts.links.size());
  return counts;
}

CallNote completed(Op op, uint64_t count, int64_t took_ns) {
  CallNote note = test::host_note(op, count);
  note.state = CallState::kCompleted;
  note.begin_ns = 1;
  note.end_ns = 1 + took_ns;
  return note;
}

TEST(Metrics, CountCallsBytesAndTimes) {
  CommCounts counts = counts_of();
  for (const int64_t ns : std::initializer_list<int64_t>{15'000, 60'000, 20'000'000'000}) {
    const CallNote note = completed(Op::kAllReduce, 250, ns);
    counts.tally.add_call(note);
    counts.tally.add_time(note);
  }
  const std::string text = metrics_text({counts});
  const std::string labels = R"(comm="comm0",rank="2",op="all_reduce",memory="host")";
  EXPECT_THAT(text, HasSubstr("# TYPE braid_calls_total counter\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_calls_total{" + labels + "} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_bytes_total{" + labels + "} 3000\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_bucket{" + labels + ",le=\"1e-05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_bucket{" + labels + ",le=\"2e-05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_bucket{" + labels + ",le=\"0.0001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_bucket{" + labels + ",le=\"10\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_bucket{" + labels + ",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_sum{" + labels + "} 20.000075000\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_call_seconds_count{" + labels + "} 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("op=\"all_gather\"")));  // there was none
}

TEST(Metrics, CountLinksAndFailures) {
  CommCounts counts = counts_of();
  counts.tally.links[0] = {1'000, 2'000, 49'152, true, 0};
  counts.tally.links[1] = {10, 20, 16'384, false, 4};
  counts.tally.failures[static_cast<size_t>(Code::kTimeout)] = 5;
  const std::string text = metrics_text({counts});
  const std::string comm = R"({comm="comm0",rank="2",)";
  EXPECT_THAT(text, HasSubstr("braid_link_sent_bytes_total" + comm + R"(link="shm"} 1000)"));
  EXPECT_THAT(text, HasSubstr("braid_link_received_bytes_total" + comm + R"(link="staged"} 20)"));
  EXPECT_THAT(text, HasSubstr("braid_link_share" + comm + R"(link="shm"} 0.75)"));
  EXPECT_THAT(text, HasSubstr("braid_link_up" + comm + R"(link="shm"} 1)"));
  EXPECT_THAT(text, HasSubstr("braid_link_up" + comm + R"(link="staged"} 0)"));
  EXPECT_THAT(text, Not(HasSubstr("braid_link_up" + comm + R"(link="nvlink"})")));
  EXPECT_THAT(text, HasSubstr("braid_link_losses_total" + comm + R"(link="staged"} 4)"));
  EXPECT_THAT(text, HasSubstr("braid_call_failures_total" + comm + R"(code="timeout"} 5)"));
  EXPECT_THAT(text, HasSubstr("braid_call_failures_total" + comm + R"(code="peer_lost"} 0)"));
}

// What the format asks for: one HELP and TYPE a family, its samples behind them, none twice.
TEST(Metrics, KeepTheFormat) {
  CommCounts a = counts_of("a"), b = counts_of("b \"q\" \\ \n");
  for (CommCounts* each : {&a, &b}) each->tally.add_call(completed(Op::kBroadcast, 1, 1));
  std::istringstream text(metrics_text({a, b}));
  std::set<std::string> families, samples;
  std::string family;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("# TYPE ")) continue;
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
      continue;
    }
    EXPECT_TRUE(line.starts_with(family)) << line;
    EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
  EXPECT_GE(families.size(), 9u);
  EXPECT_THAT(metrics_text({b}), HasSubstr(R"(comm="b \"q\" \\ \n")"));
}

// ---- the server ----

std::string ask(uint16_t port, const std::string& request) {
  const auto there = sys::resolve("127.0.0.1", port);
  const auto connection = sys::connect_to(there->front(), Deadline::after_ns(5'000'000'000));
  if (!connection.ok()) return connection.status().to_string();
  const Deadline deadline = Deadline::after_ns(5'000'000'000);
  EXPECT_TRUE(sys::send_all(connection->get(), std::as_bytes(std::span(request)), deadline).ok());
  std::string reply;
  for (std::byte byte; sys::recv_all(connection->get(), {&byte, 1}, deadline).ok();)
    reply += static_cast<char>(byte);
  return reply;
}

TEST(MetricsServer, ServesOnePage) {
  int asked = 0;
  const auto server = MetricsServer::start(0, [&] { return fmt::format("page {}\n", ++asked); });
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  const uint16_t port = server.value()->port();
  const std::string reply = ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(reply, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 7\r\n"));
  EXPECT_THAT(reply, testing::EndsWith("\r\n\r\npage 1\n"));
  EXPECT_THAT(ask(port, "GET /metrics?x=1 HTTP/1.0\r\n\r\n"), testing::EndsWith("page 2\n"));
  EXPECT_THAT(ask(port, "GET / HTTP/1.1\r\n\r\n"), HasSubstr("404 Not Found"));
  EXPECT_THAT(ask(port, "POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("405 Method"));
}

TEST(MetricsServer, IsOnLoopbackAlone) {
  const auto server = MetricsServer::start(0, [] { return std::string(); });
  ASSERT_TRUE(server.ok());
  const auto interfaces = sys::list_interfaces();
  ASSERT_TRUE(interfaces.ok());
  for (const sys::Interface& own : interfaces.value()) {
    if (own.is_loopback || own.address.family() != AF_INET) continue;
    sys::Endpoint there = own.address;
    there.set_port(server.value()->port());
    EXPECT_FALSE(sys::connect_to(there, Deadline::after_ns(2'000'000'000)).ok()) << there.text();
  }
}

TEST(MetricsServer, SaysThatAPortIsTaken) {
  const auto server = MetricsServer::start(0, [] { return std::string(); });
  ASSERT_TRUE(server.ok());
  const auto second = MetricsServer::start(server.value()->port(), [] { return std::string(); });
  EXPECT_EQ(second.status().code(), Code::kExhausted);
}

TEST(MetricsServer, WhoSaysNothingDoesNotHoldItUp) {
  auto server = MetricsServer::start(0, [] { return std::string("page\n"); });
  ASSERT_TRUE(server.ok());
  const auto there = sys::resolve("127.0.0.1", server.value()->port());
  const auto silent = sys::connect_to(there->front(), Deadline::after_ns(2'000'000'000));
  ASSERT_TRUE(silent.ok());
  EXPECT_THAT(ask(server.value()->port(), "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("200 OK"));
}

// More than are served at a time, and each of them for ever: who asks is answered at once.
TEST(MetricsServer, ManyWhoSayNothingDoNotHoldItUp) {
  auto server = MetricsServer::start(0, [] { return std::string("page\n"); });
  ASSERT_TRUE(server.ok());
  const auto there = sys::resolve("127.0.0.1", server.value()->port());
  std::vector<sys::Fd> silent;
  const int64_t start_ns = now_ns();
  for (int i = 0; i < 100; ++i) {
    auto one = sys::connect_to(there->front(), Deadline::after_ns(2'000'000'000));
    ASSERT_TRUE(one.ok());
    const std::string half = "GET /metr";
    (void)sys::send_some(one->get(), std::as_bytes(std::span(half)));
    silent.push_back(std::move(one).value());
    if (i % 20 == 0) {
      EXPECT_THAT(ask(server.value()->port(), "GET /metrics HTTP/1.1\r\n\r\n"),
                  HasSubstr("200 OK"));
    }
  }
  EXPECT_LT(now_ns() - start_ns, 20'000'000'000) << "one after the other they would take 100 s";
}

/// A child that lives as long as this, and does nothing.
class Child {
 public:
  /// Returns when it runs: what a child gives up of its parent's, it gives up before.
  void fork() {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    char word = 0;
    if (pid_ == 0) {
      ::alarm(60);  // should this die without a word
      (void)!::write(ends[1], &word, 1);
    }
    while (pid_ == 0) ::pause();
    EXPECT_EQ(::read(ends[0], &word, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

// Workers of Python's data loaders outlive comms: they must not keep the port.
TEST(MetricsServer, AForkDoesNotKeepThePort) {
  Child child;
  auto server = MetricsServer::start(0, [] { return std::string(); });
  ASSERT_TRUE(server.ok());
  const uint16_t port = server.value()->port();
  child.fork();
  server.value().reset();
  const auto again = MetricsServer::start(port, [] { return std::string(); });
  EXPECT_TRUE(again.ok()) << again.status().to_string();
}

// Who asks sees the end of the answer, also when somebody has forked in the middle of it.
TEST(MetricsServer, AForkDoesNotKeepWhoAsks) {
  Child child;
  const auto server = MetricsServer::start(0, [&child] {
    child.fork();
    return std::string("page\n");
  });
  ASSERT_TRUE(server.ok());
  const int64_t start_ns = now_ns();
  EXPECT_THAT(ask(server.value()->port(), "GET /metrics HTTP/1.1\r\n\r\n"),
              testing::EndsWith("page\n"));
  EXPECT_LT(now_ns() - start_ns, 4'000'000'000) << "the connection was still open";
}

// It is no reason for a call, or the making of a comm, to fail.
TEST(MetricsServer, DISABLED_WithoutThreads) {
  test::forbid_threads();
  const auto server = MetricsServer::start(0, [] { return std::string(); });
  EXPECT_EQ(server.status().code(), Code::kExhausted) << server.status().to_string();
  const auto config = Config::from_pairs({{"BRAID_METRICS_PORT", "29471"}});
  ASSERT_TRUE(config.ok());
  EXPECT_NE(Observer::create(config.value(), 0, 1, {}, {}), nullptr);
  test::end_alone();
}

TEST(MetricsServer, SaysThatThereIsNoThread) {
  test::run_alone("MetricsServer.DISABLED_WithoutThreads");
}

int64_t cpu_ns() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec * 1'000'000'000 + used.tv_nsec;
}

// Without a descriptor for who waits the server rests, and serves him when there is one.
TEST(MetricsServer, WantOfDescriptorsIsNotSpun) {
  auto server = MetricsServer::start(0, [] { return std::string("page\n"); });
  ASSERT_TRUE(server.ok());
  const auto there = sys::resolve("127.0.0.1", server.value()->port());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const sys::Fd waits(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(waits.is_open());
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int connected = ::connect(waits.get(), there->front().address(), there->front().length());
  const int64_t cpu_start_ns = cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_LT(cpu_ns() - cpu_start_ns, 200'000'000);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(connected, 0);
  EXPECT_THAT(ask(server.value()->port(), "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("200 OK"));
}

}  // namespace
}  // namespace braid::comm
