#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "sys/net/api.h"

namespace braid::sys {
namespace {

struct Listening {
  Fd fd;
  Endpoint at;
  explicit Listening(const char* host) {
    auto made = listen_on(resolve(host, 0)->front(), 8);
    if (!made.ok()) return;
    fd = std::move(made).value();
    at = local_endpoint(fd.get()).value();
  }
};

TEST(PeerUsers, KnowsWhoConnected) {
  const auto users = PeerUsers::open();
  if (!users.ok()) GTEST_SKIP() << users.status().message();
  for (const char* host : {"127.0.0.1", "::1"}) {
    const Listening listening(host);
    if (!listening.fd.is_open()) continue;
    const Fd client = connect_to(listening.at, Deadline::after_ns(5_s)).value();
    const Fd served = accept_on(listening.fd.get(), Deadline::after_ns(5_s)).value();
    EXPECT_EQ(users->user_of(served.get()).value(), ::geteuid()) << host;
  }
}

TEST(PeerUsers, KnowsAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  const auto users = PeerUsers::open();
  if (!users.ok()) GTEST_SKIP() << users.status().message();
  const Listening listening("127.0.0.1");
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(1);
    const auto client = connect_to(listening.at, Deadline::after_ns(5_s));
    (void)poll_one(client->get(), POLLIN, Deadline::after_ns(5_s));  // until it is closed
    ::_exit(0);
  }
  {
    const Fd served = accept_on(listening.fd.get(), Deadline::after_ns(5_s)).value();
    EXPECT_EQ(users->user_of(served.get()).value(), 65534u);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(PeerUsers, SaysSoWhereThereIsNobody) {
  const auto users = PeerUsers::open();
  if (!users.ok()) GTEST_SKIP() << users.status().message();
  const Listening listening("127.0.0.1");
  Fd client = connect_to(listening.at, Deadline::after_ns(5_s)).value();
  const Fd served = accept_on(listening.fd.get(), Deadline::after_ns(5_s)).value();
  const linger now{1, 0};
  (void)::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  client.reset();
  EXPECT_FALSE(users->user_of(served.get()).ok());
  EXPECT_FALSE(users->user_of(listening.fd.get()).ok());
}

TEST(Lookup, LiteralsAreThereAtOnce) {
  const auto lookup = Lookup::begin("[::1]", 80);
  ASSERT_TRUE(lookup.ok());
  auto found = lookup->wait(Deadline::after_ns(0));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->value().front().text(), "[::1]:80");
}

TEST(Lookup, NamesComeInTheirTime) {
  const auto lookup = Lookup::begin("localhost", 80);
  ASSERT_TRUE(lookup.ok());
  auto found = lookup->wait(Deadline::after_ns(20_s));
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->value().front().is_loopback());
  EXPECT_EQ(Lookup::begin("", 80)->wait(Deadline::after_ns(0))->status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace braid::sys
