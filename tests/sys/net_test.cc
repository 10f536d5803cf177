#include "sys/net/api.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/units.h"
#include "sys/net/private_fd.h"
#include "sys/net/wake.h"

namespace braid::sys {
namespace {

using ::testing::HasSubstr;

Deadline soon() { return Deadline::after_ns(10_s); }

struct Pair {
  Fd client, server;
};

Pair connected() {
  Fd listener = std::move(listen_on(resolve("127.0.0.1", 0)->front(), 8)).value();
  Fd client = std::move(connect_to(local_endpoint(listener.get()).value(), soon())).value();
  Fd server = std::move(accept_on(listener.get(), soon())).value();
  return {std::move(client), std::move(server)};
}

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 13 + (i >> 8));
  return data;
}

TEST(Endpoint, ReadsLiterals) {
  EXPECT_EQ(resolve("10.1.2.3", 80)->front().text(), "10.1.2.3:80");
  EXPECT_EQ(resolve("::1", 29500)->front().text(), "[::1]:29500");
  EXPECT_EQ(resolve("[::1]", 1)->front().host(), "::1");
  EXPECT_EQ(resolve("10.1.2.3", 80)->front().family(), AF_INET);
}

TEST(Endpoint, KnowsLiterals) {
  for (const char* const host : {"127.0.1.1", "::1", "[::1]", "0.0.0.0", "192.0.2.1"})
    EXPECT_TRUE(is_literal(host)) << host;
  for (const char* const host : {"localhost", "node-7", "node-7.example", ""})
    EXPECT_FALSE(is_literal(host)) << host;
}

TEST(Endpoint, KnowsLoopbackAndWildcard) {
  for (const char* text : {"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(resolve(text, 1)->front().is_loopback()) << text;
  for (const char* text : {"10.0.0.1", "128.0.0.1", "fe80::1", "::ffff:10.0.0.1", "0.0.0.0"})
    EXPECT_FALSE(resolve(text, 1)->front().is_loopback()) << text;
  EXPECT_TRUE(resolve("0.0.0.0", 1)->front().is_wildcard());
  EXPECT_TRUE(resolve("::", 1)->front().is_wildcard());
  EXPECT_FALSE(resolve("127.0.0.1", 1)->front().is_wildcard());
}

TEST(Endpoint, ComparesAddressAndPort) {
  const Endpoint a = resolve("10.0.0.1", 5)->front();
  Endpoint b = a;
  EXPECT_TRUE(a == b);
  b.set_port(6);
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a == resolve("10.0.0.2", 5)->front());
}

TEST(Endpoint, NamesResolveOrSayWhyNot) {
  auto local = resolve("localhost", 7);
  ASSERT_TRUE(local.ok());
  EXPECT_TRUE(std::all_of(local->begin(), local->end(),
                          [](const auto& e) { return e.is_loopback() && e.port() == 7; }));
  const Status none = resolve("no-such-host.invalid", 1).status();
  EXPECT_EQ(none.code(), Code::kUnavailable);
  EXPECT_THAT(none.message(), HasSubstr("no-such-host.invalid"));
  EXPECT_EQ(resolve("", 1).status().code(), Code::kInvalidArgument);
}

TEST(Net, MovesBytesBothWays) {
  const Pair pair = connected();
  const auto data = pattern(5'000'000);  // far above any socket buffer
  std::vector<std::byte> got(data.size());
  std::thread sender([&] { EXPECT_TRUE(send_all(pair.client.get(), data, soon()).ok()); });
  EXPECT_TRUE(recv_all(pair.server.get(), got, soon()).ok());
  sender.join();
  EXPECT_EQ(got, data);
}

TEST(Net, EmptyMessagesNeedNobody) {
  const Pair pair = connected();
  EXPECT_TRUE(send_all(pair.client.get(), {}, Deadline::after_ns(0)).ok());
  EXPECT_TRUE(recv_all(pair.server.get(), {}, Deadline::after_ns(0)).ok());
}

TEST(Net, EveryWaitHasADeadline) {
  const Pair pair = connected();
  std::byte one[1];
  const int64_t start_ns = now_ns();
  EXPECT_EQ(recv_all(pair.server.get(), one, Deadline::after_ns(30_ms)).code(), Code::kTimeout);
  const auto data = pattern(50'000'000);  // nobody reads: the buffers fill up
  EXPECT_EQ(send_all(pair.client.get(), data, Deadline::after_ns(100_ms)).code(), Code::kTimeout);
  Fd listener = std::move(listen_on(resolve("127.0.0.1", 0)->front(), 8)).value();
  EXPECT_EQ(accept_on(listener.get(), Deadline::after_ns(30_ms)).status().code(), Code::kTimeout);
  EXPECT_LT(now_ns() - start_ns, 5_s);
}

TEST(Net, AClosedPeerIsLostAndRaisesNoSignal) {
  Pair pair = connected();
  pair.server.reset();
  std::byte one[1];
  EXPECT_EQ(recv_all(pair.client.get(), one, soon()).code(), Code::kPeerLost);
  const auto data = pattern(100'000);
  Status sent;
  for (int i = 0; i < 10 && sent.ok(); ++i) sent = send_all(pair.client.get(), data, soon());
  EXPECT_EQ(sent.code(), Code::kPeerLost);
}

TEST(Net, AClosedPortIsUnavailable) {
  Fd listener = std::move(listen_on(resolve("127.0.0.1", 0)->front(), 8)).value();
  const Endpoint endpoint = local_endpoint(listener.get()).value();
  listener.reset();
  const Status status = connect_to(endpoint, soon()).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(endpoint.text()));
}

// A network that is down says nothing of the process behind it: it may come back, where one that
// refuses has ended. In a network of its own, whose loopback nobody has brought up.
TEST(Net, ANetworkThatIsDownIsNoRefusal) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWNET) != 0) ::_exit(2);
    const Status status = connect_to(resolve("127.0.0.1", 1)->front(), soon()).status();
    ::_exit(status.code() == Code::kTimeout ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "no namespaces here";
  EXPECT_EQ(status, 0);
}

// Knocking on a closed port of the ephemeral range connects to itself once in some ten thousand
// times, unless the caller binds that very port: then every time.
TEST(Net, NobodyIsConnectedToItself) {
  Fd probe = std::move(listen_on(resolve("127.0.0.1", 0)->front(), 1)).value();
  const Endpoint endpoint = local_endpoint(probe.get()).value();
  probe.reset();
  const Fd self(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(self.get(), endpoint.address(), endpoint.length()), 0);
  ASSERT_EQ(::connect(self.get(), endpoint.address(), endpoint.length()),
            0);  // the kernel does allow it
  EXPECT_TRUE(local_endpoint(self.get()).value() == remote_endpoint(self.get()).value());
}

TEST(Net, ATakenPortAndAForeignAddressAreToldApart) {
  const Fd listener = std::move(listen_on(resolve("127.0.0.1", 0)->front(), 8)).value();
  EXPECT_EQ(listen_on(local_endpoint(listener.get()).value(), 8).status().code(), Code::kExhausted);
  EXPECT_EQ(listen_on(resolve("192.0.2.1", 0)->front(), 8).status().code(), Code::kUnavailable);
}

TEST(Net, SocketsAreReadyForUse) {
  const Pair pair = connected();
  for (const int fd : {pair.client.get(), pair.server.get()}) {
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    int on = 0;
    socklen_t length = sizeof on;
    ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &length), 0);
    EXPECT_NE(on, 0);
  }
}

TEST(Net, SomeMovesWhatMovesNow) {
  const Pair pair = connected();
  std::byte chunk[16];
  EXPECT_EQ(recv_some(pair.server.get(), chunk).value(), 0u);
  const auto data = pattern(10);
  EXPECT_EQ(send_some(pair.client.get(), data).value(), 10u);
  ASSERT_TRUE(poll_one(pair.server.get(), POLLIN, soon()));
  EXPECT_EQ(recv_some(pair.server.get(), chunk).value(), 10u);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), chunk));
}

TEST(Net, PollRoundsUpSoThatItNeverSpins) {
  EXPECT_EQ(poll_timeout_ms(Deadline::after_ns(0)), 0);
  EXPECT_EQ(poll_timeout_ms(Deadline::after_ns(-5_s)), 0);
  EXPECT_EQ(poll_timeout_ms(Deadline::at_ns(now_ns() + 900'000)), 1);
  EXPECT_GT(poll_timeout_ms(Deadline::at_ns(INT64_MAX)), 100'000);
}

TEST(Net, LoopbackIsAnInterface) {
  auto all = list_interfaces();
  ASSERT_TRUE(all.ok());
  EXPECT_TRUE(std::any_of(all->begin(), all->end(), [](const Interface& i) {
    return i.is_loopback && i.address.is_loopback() && !i.name.empty();
  }));
}

TEST(Wake, WakesOnceForManySignals) {
  const Wake wake = std::move(Wake::create()).value();
  EXPECT_FALSE(poll_one(wake.fd(), POLLIN, Deadline::after_ns(0)));
  std::thread([&] { wake.signal(), wake.signal(); }).join();
  EXPECT_TRUE(poll_one(wake.fd(), POLLIN, soon()));
  wake.drain();
  EXPECT_FALSE(poll_one(wake.fd(), POLLIN, Deadline::after_ns(0)));
}

// Sends one byte from a forked child through `fd`; false when it did not get out as such.
bool child_can_send(int fd) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(::send(fd, "x", 1, MSG_NOSIGNAL) == 1 ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(PrivateFd, IsNotInheritedByAFork) {
  Pair pair = connected();
  PrivateFd guarded(std::move(pair.client));
  EXPECT_FALSE(child_can_send(guarded.get()));
  EXPECT_TRUE(child_can_send(pair.server.get()));  // an ordinary one is
  // The parent's own is untouched.
  EXPECT_TRUE(send_all(guarded.get(), pattern(3), soon()).ok());
}

TEST(PrivateFd, IsForgottenWhenClosedOrMoved) {
  Pair pair = connected();
  const int number = pair.client.get();
  PrivateFd first(std::move(pair.client));
  PrivateFd second(std::move(first));
  EXPECT_FALSE(first.is_open());  // NOLINT: looking at a moved-from descriptor is the point
  EXPECT_FALSE(child_can_send(number));
  second.reset();
  // The number's next owner is nobody's secret.
  ASSERT_EQ(::dup2(pair.server.get(), number), number);
  const Fd reused(number);
  EXPECT_TRUE(child_can_send(number));
}

}  // namespace
}  // namespace braid::sys
