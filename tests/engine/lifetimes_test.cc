// What ends while something of it is still asked for.
#include <atomic>

#include "engine/counters.h"
#include "engine/engine.h"
#include "engines.h"
#include "sys/net/api.h"

namespace braid::engine::test {
namespace {

Way on_host() { return {"local", true, "", 0, {}}; }

TEST(Lifetimes, ARegionThatWasUnregisteredBeginsNoTransfer) {
  Engines engines(on_host());
  auto a = engines.make("a"), b = engines.make("b");
  Memory from(*a, 100, 1), to(*b, 100, 2), of_b(*b, 100, 3);
  const RemoteRegion remote = import(*a, to);
  EXPECT_TRUE(failed(wait(a->write({of_b.region, 0}, {remote, 0}, 100)), Code::kInvalidArgument,
                     "another engine's"));
  ASSERT_TRUE(is_ok(a->unregister(*from.region, in_seconds(5))));
  EXPECT_TRUE(failed(wait(a->write({from.region, 0}, {remote, 0}, 100)), Code::kInvalidArgument,
                     "was unregistered"));
  EXPECT_TRUE(failed(wait(a->read({from.region, 0}, {remote, 0}, 100)), Code::kInvalidArgument,
                     "was unregistered"));
}

// A region is free when its peers have answered, and not with the worker's next tick, 5 ms later: each of
// these begins just behind the one before, so behind a tick, too.
TEST(Lifetimes, ARegionIsFreeWhenItsPeersHaveAnswered) {
  Engines engines(on_host());
  auto a = engines.make("a"), b = engines.make("b");
  ASSERT_TRUE(is_ok(wait(a->connect(address_of(*a, *b)))));
  int64_t shortest_ns = kSecond;
  for (int i = 0; i < 30; ++i) {
    Memory to(*b, 100, 1);
    const int64_t began = now_ns();
    ASSERT_TRUE(is_ok(b->unregister(*to.region, in_seconds(5))));
    if (i != 0) shortest_ns = std::min(shortest_ns, now_ns() - began);
  }
  EXPECT_LT(shortest_ns, 3'000'000);
}

TEST(Lifetimes, CountsThatWereTakenLeaveNothingBehind) {
  Counters counters;
  for (uint32_t i = 0; i < 100; ++i) {
    auto ticket = std::make_shared<Ticket>("counts");
    (void)counters.add(2 * i, 3);
    ASSERT_TRUE(is_ok(counters.expect(2 * i, {3, ticket, nullptr})));
    ASSERT_TRUE(ticket->is_done());
    ASSERT_TRUE(is_ok(counters.expect(2 * i + 1, {1, std::make_shared<Ticket>("one"), nullptr})));
    (void)counters.forget(2 * i + 1, cancelled("nobody wants it"));
  }
  EXPECT_EQ(counters.num_kept(), 0u);
  (void)counters.add(1, 2);
  EXPECT_EQ(counters.count(1), 2u);
}

TEST(Lifetimes, ScatterAndSignalBeginAllOrNothing) {
  Engines engines(on_host());
  EngineOptions options = engines.options("a");
  options.most_transfers = 3;
  auto a = Engines::make(options), b = engines.make("b");
  Memory from(*a, 100, 1), to(*b, 100, 2);
  const RemoteRegion remote = import(*a, to);
  const std::vector<ScatterPart> parts(4, {10, 0, {remote, 0}});
  EXPECT_TRUE(failed(a->scatter(from.region, parts, under(7)).status(), Code::kExhausted, "limit"));
  const std::vector<Address> peers(4, address_of(*a, *b));
  EXPECT_TRUE(failed(a->signal(peers, 7).status(), Code::kExhausted, "limit"));
  EXPECT_EQ(a->stats().transfers_begun, 0u);
  ASSERT_TRUE(is_ok(wait(a->write({from.region, 0}, {remote, 0}, 10, under(8)))));
  EXPECT_EQ(b->count(7), 0u);
  auto all = a->scatter(from.region, std::span(parts).first(3), under(7));
  ASSERT_TRUE(is_ok(all));
  for (const TicketPtr& ticket : *all) EXPECT_TRUE(is_ok(ticket->wait(in_seconds(10))));
  EXPECT_EQ(b->count(7), 3u);
}

TEST(Lifetimes, ATimeoutForEverIsNoneInThePast) {
  Engines engines(on_host());
  auto a = engines.make("a"), b = engines.make("b");
  EXPECT_TRUE(is_ok(wait(a->send(address_of(*a, *b), "x", under(1, INT64_MAX)))));
}

// A user's callback tries again what was cancelled, here because the engine is being closed.
TEST(Lifetimes, CallbacksMayCallAnEngineThatIsBeingClosed) {
  Engines engines(on_host());
  auto a = engines.make("a");
  Address nobody = address_of(*a, *a);
  nobody.incarnation.fill('x');
  // A port that takes connections and never says anything: no send ends before the engine does.
  const sys::Fd silent = sys::listen_on(sys::resolve("127.0.0.1", 0).value().front(), 8).value();
  nobody.endpoints = {sys::local_endpoint(silent.get()).value().text()};
  std::atomic<int> num_called = 0;
  Engine& engine = *a;
  for (int i = 0; i < 20; ++i) {
    TransferOptions options;
    options.callback = [&](const Status&) {
      EXPECT_EQ(engine.send(nobody, "again").status().code(), Code::kCancelled);
      EXPECT_EQ(engine.watch([](uint64_t, uint64_t) { return true; }).status().code(),
                Code::kCancelled);
      ++num_called;
    };
    ASSERT_TRUE(is_ok(a->send(nobody, "first", options)));
  }
  a.reset();
  EXPECT_EQ(num_called, 20);
}

}  // namespace
}  // namespace braid::engine::test
