// Which address of a target is tried, and when.
#include "engine/dial.h"

#include <gtest/gtest.h>

#include <array>

#include "engines.h"
#include "sys/net/api.h"

namespace braid::engine::test {
namespace {

/// A port that takes connections and never says anything, as a network does that has been cut.
struct Silent {
  Silent() {
    fd = sys::listen_on(sys::resolve("127.0.0.1", 0).value().front(), 8).value();
    text = sys::local_endpoint(fd.get()).value().text();
  }
  sys::Fd fd;
  std::string text;
};

/// A port whose network drops what asks for a connection: its queue of them is full.
struct Unreachable {
  Unreachable() {
    fd = sys::listen_on(sys::resolve("127.0.0.1", 0).value().front(), 0).value();
    const sys::Endpoint endpoint = sys::local_endpoint(fd.get()).value();
    text = endpoint.text();
    for (sys::Fd& each : queued) each = sys::begin_connect(endpoint).value();
  }
  sys::Fd fd;
  std::array<sys::Fd, 4> queued;
  std::string text;
};

/// How long it takes until the engine has answered; 0: not within 5 s.
int64_t dial_ns(Engine& engine, size_t first) {
  Address address = address_of(engine, engine);
  const Silent silent;
  address.endpoints.insert(address.endpoints.begin(), silent.text);
  const Secret secret("a token of tests");
  const Incarnation self{};
  const SessionId session{};
  Dial dial(secret, self, address, session, first);
  const int64_t start = now_ns();
  while (now_ns() < start + 5 * kSecond)
    if (dial.step(now_ns(), 0) == Dial::Outcome::kDone) {
      EXPECT_EQ(dial.at(), 1u);
      return now_ns() - start;
    }
  return 0;
}

TEST(Dial, BeginsWhereItIsTold) {
  const auto engine = Engines(Way{"local", true, "", 0, {}}).make("target");
  const int64_t told = dial_ns(*engine, 1);
  const int64_t past_the_end = dial_ns(*engine, 3);
  EXPECT_GT(told, 0);
  EXPECT_GT(past_the_end, 0);
  EXPECT_LT(told, kSecond) << "the silent address was tried first";
  EXPECT_LT(past_the_end, kSecond) << "the silent address was tried first";
}

TEST(Dial, GoesOnFromAnAddressThatIsSilent) {
  const auto engine = Engines(Way{"local", true, "", 0, {}}).make("target");
  EXPECT_GE(dial_ns(*engine, 0), kSecond);
}

// A host names the addresses of its bridges and of networks that are routed nowhere from here.
TEST(Dial, ReachesATargetBehindManyAddressesThatAreRoutedNowhere) {
  const auto engine = Engines(Way{"local", true, "", 0, {}}).make("target");
  Address address = address_of(*engine, *engine);
  const std::array<Unreachable, 9> unreachable;
  for (const Unreachable& each : unreachable)
    address.endpoints.insert(address.endpoints.begin(), each.text);
  const Secret secret("a token of tests");
  const Incarnation self{};
  const SessionId session{};
  Dial dial(secret, self, address, session);
  const Deadline lease = in_seconds(4);
  Dial::Outcome outcome = Dial::Outcome::kUnderWay;
  while (outcome == Dial::Outcome::kUnderWay && !lease.passed()) outcome = dial.step(now_ns(), 0);
  EXPECT_EQ(outcome, Dial::Outcome::kDone) << dial.why().to_string();
  EXPECT_EQ(dial.at(), unreachable.size());
}

// Hosts share addresses (a bridge of containers is 172.17.0.1 on each) and ports: another engine at
// one of the target's addresses says nothing of the target.
TEST(Dial, GoesOnFromAnAddressWhereAnotherEngineListens) {
  Engines engines(Way{"local", true, "", 0, {}});
  const auto target = engines.make("target"), other = engines.make("other");
  Address address = address_of(*target, *target);
  address.endpoints.insert(address.endpoints.begin(), other->self().endpoints.front());
  const Secret secret("a token of tests");
  const Incarnation self{};
  const SessionId session{};
  Dial dial(secret, self, address, session);
  const Deadline deadline = in_seconds(5);
  Dial::Outcome outcome = Dial::Outcome::kUnderWay;
  while (outcome == Dial::Outcome::kUnderWay && !deadline.passed())
    outcome = dial.step(now_ns(), 0);
  EXPECT_EQ(outcome, Dial::Outcome::kDone) << dial.why().to_string();
  EXPECT_EQ(dial.at(), 1u);
}

}  // namespace
}  // namespace braid::engine::test
