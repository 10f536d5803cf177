// Peers that are killed, stopped and cut off: an error within the deadline, nothing that hangs,
// nothing that lands later, and others are served on.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <thread>

#include "child.h"
#include "engine/engine.h"
#include "engines.h"
#include "support/shm_files.h"
#include "sys/net/api.h"

namespace braid::engine::test {
namespace {

Way local() { return {"local", true, "", 0, {}}; }
Way tcp() { return {"tcp", false, "tcp", 2, {}}; }

class Processes : public testing::TestWithParam<Way> {
 protected:
  EngineOptions options(const std::string& name) {
    EngineOptions out = Engines(GetParam()).options(name);
    out.lease_ns = 2 * kSecond;
    out.rail_silence_ns = 500'000'000;
    return out;
  }
};

constexpr size_t kMemoryBytes = 1 << 20;

TEST_P(Processes, AKilledTargetIsAnErrorSoon) {
  std::mt19937 random(1);
  for (int round = 0; round < 6; ++round) {
    Child child(options("child"), kMemoryBytes);
    auto a = Engines::make(options("a"));
    Memory from(*a, kMemoryBytes, 2);
    auto remote = a->import(child.descriptor);
    ASSERT_TRUE(is_ok(remote));
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      child.end(SIGKILL);
    });
    Status ended;
    int64_t began = 0;
    while (ended.ok()) {
      began = now_ns();
      ended = wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes, under(1, 10 * kSecond)));
    }
    EXPECT_LT(now_ns() - began, 4 * kSecond) << ended.to_string();
    EXPECT_EQ(ended.code(), Code::kPeerLost) << ended.to_string();
    killer.join();
  }
}

TEST_P(Processes, AStoppedTargetIsAnErrorWithinItsLease) {
  Child child(options("child"), kMemoryBytes);
  auto a = Engines::make(options("a"));
  Memory from(*a, kMemoryBytes, 2);
  auto remote = a->import(child.descriptor);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes))));
  child.stop();
  const int64_t began = now_ns();
  const Status ended = wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes));
  EXPECT_TRUE(failed(ended, Code::kPeerLost, "nothing was heard of 'child'"));
  EXPECT_LT(now_ns() - began, 5 * kSecond);
  child.go_on();
  EXPECT_TRUE(is_ok(wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes))));
}

// The ticket ended and the memory holds something else by the time the target goes on: nothing of
// that may arrive there.
TEST_P(Processes, AStoppedTargetTakesNothingFromMemoryThatWasGivenBack) {
  Child child(options("child"), kMemoryBytes);
  EngineOptions of_a = options("a");
  of_a.lease_ns = 20 * kSecond;
  auto a = Engines::make(of_a);
  Memory from(*a, kMemoryBytes, 2), back(*a, kMemoryBytes, 3);
  auto remote = a->import(child.descriptor);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes))));
  const std::vector<std::byte> first = from.bytes;
  child.stop();
  const std::vector<std::byte> second = pattern(kMemoryBytes, 4);
  std::copy(second.begin(), second.end(), from.bytes.begin());
  const int64_t began = now_ns();
  auto ticket = a->write({from.region, 0}, {*remote, 0}, kMemoryBytes, under(1, 300'000'000));
  if (GetParam().is_local) {
    EXPECT_TRUE(failed(wait(ticket, 10), Code::kTimeout, "the deadline has passed"));
    EXPECT_LT(now_ns() - began, 4 * kSecond);
    std::fill(from.bytes.begin(), from.bytes.end(), std::byte{0x99});
  }
  child.go_on();
  const Status ended = wait(ticket, 20);
  EXPECT_TRUE(ended.code() == Code::kTimeout || ended.ok()) << ended.to_string();
  std::fill(from.bytes.begin(), from.bytes.end(), std::byte{0x99});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_TRUE(is_ok(wait(a->read({back.region, 0}, {*remote, 0}, kMemoryBytes))));
  for (size_t i = 0; i < kMemoryBytes; ++i)
    ASSERT_TRUE(back.bytes[i] == first[i] || back.bytes[i] == second[i]) << i;
}

// A count that was stated is counted when the target goes on: until the target has said whether it
// was, a ticket that says "timeout" would have its user count it again.
TEST_P(Processes, ACountThatAStoppedTargetMayStillTakeIsNotOver) {
  if (GetParam().is_local) GTEST_SKIP() << "a target of this host looks whether it is waited for";
  Child child(options("child"), kMemoryBytes);
  EngineOptions of_a = options("a");
  of_a.lease_ns = 20 * kSecond;
  auto a = Engines::make(of_a);
  auto remote = a->import(child.descriptor);
  ASSERT_TRUE(is_ok(remote));
  const std::vector<Address> peers = {(*remote)->owner};
  TransferOptions soon;
  soon.timeout_ns = 300'000'000;
  ASSERT_TRUE(is_ok(wait(a->connect(peers.front()))));
  child.stop();
  auto tickets = a->signal(peers, 1, soon);
  ASSERT_TRUE(is_ok(tickets));
  const TicketPtr ticket = tickets->front();
  (void)ticket->wait(in_seconds(3));
  EXPECT_FALSE(ticket->is_done()) << ticket->status().to_string();
  child.go_on();
  const Status ended = ticket->wait(in_seconds(10));
  EXPECT_TRUE(ended.ok() || ended.message().find("deadline has passed") != std::string::npos)
      << ended.to_string();
}

// Of one that is taken back pieces are out, and the target does not answer the fence: its ticket ends
// with the lease, and no other one's.
TEST_P(Processes, DeadlinesPassWhileOneWaitsForAFence) {
  if (GetParam().is_local) GTEST_SKIP() << "there are no rails";
  constexpr size_t kLarge = 32 << 20;
  constexpr int kNumWrites = 40;
  Child child(options("child"), kLarge);
  EngineOptions of_a = options("a");
  of_a.lease_ns = 60 * kSecond;
  auto a = Engines::make(of_a);
  Memory from(*a, kLarge, 1);
  auto remote = a->import(child.descriptor);
  ASSERT_TRUE(is_ok(remote));
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {*remote, 0}, kLarge))));
  child.stop();
  std::vector<TicketPtr> tickets;
  for (int i = 0; i < kNumWrites; ++i) {
    TransferOptions soon;
    soon.timeout_ns = kSecond + i * kSecond / 20;
    tickets.push_back(a->write({from.region, 0}, {*remote, 0}, kLarge, soon).value());
  }
  int num_waiting = 0;
  const Deadline deadline = in_seconds(10);
  for (const TicketPtr& ticket : tickets)
    num_waiting += ticket->wait(deadline).code() == Code::kTimeout && ticket->is_done() ? 0 : 1;
  EXPECT_LE(num_waiting, kNumWrites / 4) << "as many as have pieces out";
  child.go_on();
}

// The source was stopped in the midst of a write, and given up: its pages are free here, whatever
// it does when it goes on.
TEST_P(Processes, AStoppedSourceWritesNothingIntoPagesThatWereTakenBack) {
  Child child(options("child"), kMemoryBytes, true);  // forked before there are threads
  auto b = Engines::make(options("b"));
  Memory to(*b, kMemoryBytes, 3);
  child.aim(to.descriptor);
  ASSERT_TRUE(is_ok(wait(b->expect(1, 3))));
  child.stop();
  ASSERT_TRUE(is_ok(b->unregister(*to.region, in_seconds(10))));
  std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0x44});
  child.go_on();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.end(),
                          [](std::byte x) { return x == std::byte{0x44}; }));
}

// The wait was shorter than the patience with a peer that does not answer.
TEST_P(Processes, UnregisterMayBeCalledAgainAfterATimeout) {
  auto b = Engines::make(options("b"));
  Memory to(*b, kMemoryBytes, 1);
  Child child(options("child"), kMemoryBytes, true);
  child.aim(to.descriptor);
  const Deadline deadline = in_seconds(10);
  while (b->count(1) < 3 && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_GE(b->count(1), 3);
  child.stop();
  EXPECT_EQ(b->unregister(*to.region, Deadline::after_ns(kSecond / 5)).code(), Code::kTimeout);
  EXPECT_TRUE(is_ok(b->unregister(*to.region, in_seconds(10))));
  EXPECT_TRUE(failed(b->unregister(*to.region, in_seconds(10)), Code::kInvalidArgument,
                     "there is no region"));
}

// It has a descriptor from before, and one that is stopped keeps the region from being let go.
TEST_P(Processes, WhoConnectsWhileARegionIsTakenBackWritesNothingThere) {
  Child child(options("child"), kMemoryBytes, true);  // forked before there are threads
  auto b = Engines::make(options("b")), c = Engines::make(options("c"));
  Memory to(*b, kMemoryBytes, 1), from(*c, kMemoryBytes, 2);
  const RemoteRegion remote = import(*c, to);
  child.aim(to.descriptor);
  ASSERT_TRUE(is_ok(wait(b->expect(1, 3))));
  child.stop();
  ASSERT_EQ(b->unregister(*to.region, Deadline::after_ns(kSecond / 5)).code(), Code::kTimeout);
  std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0x44});
  EXPECT_TRUE(failed(wait(c->write({from.region, 0}, {remote, 0}, kMemoryBytes)),
                     Code::kInvalidArgument, "was unregistered"));
  // Nobody is waited for any more, and it is registered still.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  auto d = Engines::make(options("d"));
  Memory from_d(*d, kMemoryBytes, 2);
  EXPECT_TRUE(failed(wait(d->write({from_d.region, 0}, {import(*d, to), 0}, kMemoryBytes)),
                     Code::kInvalidArgument, "was unregistered"));
  EXPECT_TRUE(is_ok(b->unregister(*to.region, in_seconds(10))));
  EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.end(),
                          [](std::byte x) { return x == std::byte{0x44}; }));
}

TEST_P(Processes, AKilledSourceHarmsNobody) {
  std::vector<std::unique_ptr<Child>> children;  // forked before there are threads
  for (int i = 0; i < 5; ++i)
    children.push_back(std::make_unique<Child>(options("child"), kMemoryBytes, true));
  auto b = Engines::make(options("b"));
  Memory to(*b, kMemoryBytes, 3), other(*b, kMemoryBytes, 4);
  auto a = Engines::make(options("a"));
  Memory from(*a, kMemoryBytes, 2);
  std::mt19937 random(7);
  for (const auto& child : children) {
    child->aim(to.descriptor);
    ASSERT_TRUE(is_ok(wait(b->expect(1, 1 + random() % 3))));
    child->end(SIGKILL);
    ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {import(*a, other), 0}, kMemoryBytes))));
    EXPECT_EQ(from.bytes, other.bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Processes, testing::Values(local(), tcp()),
                         [](const auto& instance) { return instance.param.name; });

/// Over provider shm, where a killed process leaves 16 MiB in /dev/shm for each of its endpoints.
class ProcessesOverShm : public testing::Test {
 protected:
  static EngineOptions options(const std::string& name, int64_t lease_ns) {
    EngineOptions out = Engines({"shm", false, "shm", 1, {}}).options(name);
    out.lease_ns = lease_ns;
    return out;
  }
  void SetUp() override {
    if (const auto library = sys::real_fabric(); !library.ok())
      GTEST_SKIP() << "skipped: " << library.status().message();
  }
  /// Kills `child`, which writes into memory of `b` or has `a` write into its own, in the midst of it.
  void kill(Child& child) {
    pids_.push_back(child.pid());
    EXPECT_FALSE(files_.left_by(pids_).empty()) << "nothing to leave";
    child.end(SIGKILL);
  }
  /// What it has left once its peers have had the time to hear of it.
  std::vector<std::string> left(int64_t seconds) const {
    const Deadline deadline = in_seconds(seconds);
    while (!files_.left_by(pids_).empty() && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return files_.left_by(pids_);
  }

 private:
  const braid::test::ShmFiles files_;
  std::vector<pid_t> pids_;
};

TEST_F(ProcessesOverShm, AKilledTargetLeavesNothingWhenItIsLost) {
  Child child(options("child", 2 * kSecond), kMemoryBytes);
  auto a = Engines::make(options("a", 2 * kSecond));
  Memory from(*a, kMemoryBytes, 2);
  auto remote = a->import(child.descriptor);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes))));
  kill(child);
  EXPECT_EQ(wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes)).code(), Code::kPeerLost);
  EXPECT_THAT(left(5), testing::IsEmpty());
}

TEST_F(ProcessesOverShm, AKilledTargetLeavesNothingWhenItIsDisconnectedOrTheEngineCloses) {
  for (const bool disconnects : {true, false}) {
    Child child(options("child", 60 * kSecond), kMemoryBytes);
    auto a = Engines::make(options("a", 60 * kSecond));
    Memory from(*a, kMemoryBytes, 2);
    auto remote = a->import(child.descriptor);
    ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {*remote, 0}, kMemoryBytes))));
    kill(child);
    if (disconnects)
      a->disconnect((*remote)->owner);
    else
      a.reset();
    EXPECT_THAT(left(disconnects ? 5 : 0), testing::IsEmpty());
  }
}

TEST_F(ProcessesOverShm, AKilledSourceLeavesNothingWhenItIsLostOrTheEngineCloses) {
  for (const bool is_lost : {true, false}) {
    const int64_t lease_ns = is_lost ? 2 * kSecond : 60 * kSecond;
    Child child(options("child", lease_ns), kMemoryBytes, true);
    auto b = Engines::make(options("b", lease_ns));
    Memory to(*b, kMemoryBytes, 3);
    child.aim(to.descriptor);
    ASSERT_TRUE(is_ok(wait(b->expect(1, 3))));
    kill(child);
    if (!is_lost) b.reset();
    EXPECT_THAT(left(is_lost ? 10 : 0), testing::IsEmpty());
  }
}

/// Passes bytes between clients and a port, until it is told not to.
class Proxy {
 public:
  explicit Proxy(const std::string& endpoint) {
    const size_t colon = endpoint.rfind(':');
    behind_ = sys::resolve(endpoint.substr(0, colon),
                           static_cast<uint16_t>(std::stoi(endpoint.substr(colon + 1))))
                  .value()
                  .front();
    listener_ = sys::listen_on(sys::resolve("127.0.0.1", 0).value().front(), 8).value();
    thread_ = std::thread([this] { serve(); });
  }
  ~Proxy() {
    is_ending_ = true;
    thread_.join();
  }
  std::string endpoint() const { return sys::local_endpoint(listener_.get()).value().text(); }
  /// Ends every connection that there is now.
  void cut() { ++cuts_; }
  void hold(bool holds) { holds_ = holds; }

 private:
  struct Pair {
    sys::Fd client, server;
  };
  static bool pass(const sys::Fd& from, const sys::Fd& to) {
    std::array<std::byte, 4096> bytes;
    const auto got = sys::recv_some(from.get(), bytes);
    return got.ok() &&
           sys::send_all(to.get(), std::span(bytes).first(got.value()), in_seconds(1)).ok();
  }
  void serve() {
    std::vector<Pair> pairs;
    int cuts = 0;
    while (!is_ending_) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (cuts != cuts_) pairs.clear();
      cuts = cuts_;
      if (holds_) continue;
      if (auto client = sys::accept_on(listener_.get(), Deadline::at_ns(0)); client.ok()) {
        auto server = sys::connect_to(behind_, in_seconds(1));
        if (server.ok()) pairs.push_back({std::move(client).value(), std::move(server).value()});
      }
      std::erase_if(pairs, [](const Pair& pair) {
        return !pass(pair.client, pair.server) || !pass(pair.server, pair.client);
      });
    }
  }
  sys::Endpoint behind_;
  sys::Fd listener_;
  std::atomic<int> cuts_ = 0;
  std::atomic<bool> holds_ = false, is_ending_ = false;
  std::thread thread_;
};

// The control connection is cut again and again under load; nothing is lost or counted twice.
TEST(Network, CutsOfTheControlConnectionAreSurvived) {
  for (const Way& way : {local(), tcp()}) {
    Engines engines(way);
    auto a = engines.make("a"), b = engines.make("b");
    Memory from(*a, 300'000, 1), to(*b, 300'000, 2);
    Proxy proxy(b->self().endpoints.front());
    auto through = std::make_shared<RegionDescriptor>(*import(*a, to));
    through->owner.endpoints = {proxy.endpoint()};
    uint64_t count = 0;
    const Deadline deadline = in_seconds(3);
    std::thread cutter([&] {
      while (!deadline.passed()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(37));
        proxy.cut();
      }
    });
    while (!deadline.passed()) {
      TransferOptions options = under(1);
      options.notification = std::to_string(count);
      ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {through, 0}, 300'000, options))));
      ++count;
    }
    cutter.join();
    EXPECT_EQ(b->count(1), count);
    for (uint64_t i = 0; i < count; ++i)
      ASSERT_EQ(b->take_notification(in_seconds(1))->bytes, std::to_string(i));
    EXPECT_EQ(from.bytes, to.bytes);
  }
}

TEST(Network, ASilentControlConnectionIsMadeAnewOrGivenUp) {
  Engines engines(local());
  EngineOptions of_a = engines.options("a");
  of_a.lease_ns = 4 * kSecond;
  auto a = Engines::make(of_a), b = engines.make("b");
  Memory from(*a, 100, 1), to(*b, 100, 2);
  Proxy proxy(b->self().endpoints.front());
  auto through = std::make_shared<RegionDescriptor>(*import(*a, to));
  through->owner.endpoints = {proxy.endpoint(), b->self().endpoints.front()};
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {through, 0}, 100))));
  proxy.hold(true);
  const int64_t began = now_ns();
  EXPECT_TRUE(is_ok(wait(a->write({from.region, 0}, {through, 0}, 100))));  // by the other address
  EXPECT_GT(now_ns() - began, kSecond / 2);
  a->disconnect(through->owner);
  auto only = std::make_shared<RegionDescriptor>(*through);
  only->owner.endpoints = {proxy.endpoint()};
  EXPECT_TRUE(failed(wait(a->write({from.region, 0}, {RemoteRegion(only), 0}, 100)),
                     Code::kPeerLost, "nothing was heard of 'b'"));
}

TEST(Network, StrangersAndOtherJobsAreRefused) {
  Engines engines(local());
  auto b = engines.make("b");
  EngineOptions foreign = engines.options("stranger");
  foreign.token = "another token";
  auto c = Engines::make(foreign);
  Memory to(*b, 100, 1);
  EXPECT_TRUE(
      failed(c->import(to.descriptor).status(), Code::kInvalidArgument, "made by another job"));
  EXPECT_TRUE(failed(wait(c->send(b->self(), "let me in")), Code::kPeerLost, "another job"));
  const std::string endpoint = b->self().endpoints.front();
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    const size_t colon = endpoint.rfind(':');
    auto fd =
        sys::connect_to(sys::resolve(endpoint.substr(0, colon),
                                     static_cast<uint16_t>(std::stoi(endpoint.substr(colon + 1))))
                            .value()
                            .front(),
                        in_seconds(1));
    ASSERT_TRUE(is_ok(fd));
    std::vector<std::byte> garbage(random() % 600);
    for (std::byte& x : garbage) x = static_cast<std::byte>(random());
    (void)sys::send_some(fd.value().get(), garbage);
  }
  auto a = engines.make("a");
  EXPECT_TRUE(is_ok(wait(a->send(b->self(), "a member comes in"))));
  EXPECT_EQ(b->receive(in_seconds(5))->bytes, "a member comes in");
}

}  // namespace
}  // namespace braid::engine::test
