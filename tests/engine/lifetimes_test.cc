// What ends while something of it is still asked for.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/sanitizer.h"
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
  constexpr int64_t kAtOnceNs = 3'000'000;
  int64_t shortest_ns = kSecond;
  // Beside other programs most are long.
  for (int i = 0; i < 1000 && shortest_ns >= kAtOnceNs; ++i) {
    Memory to(*b, 100, 1);
    const int64_t began = now_ns();
    ASSERT_TRUE(is_ok(b->unregister(*to.region, in_seconds(5))));
    if (i != 0) shortest_ns = std::min(shortest_ns, now_ns() - began);
  }
  EXPECT_LT(shortest_ns, kAtOnceNs);
}

TEST(Lifetimes, CountsThatWereTakenLeaveNothingBehind) {
  Counters counters;
  for (uint32_t i = 0; i < 100; ++i) {
    auto ticket = std::make_shared<Ticket>("counts");
    (void)counters.add(2 * i, 3);
    ASSERT_TRUE(is_ok(counters.expect(2 * i, {3, ticket, {}})));
    ASSERT_TRUE(ticket->is_done());
    ASSERT_TRUE(is_ok(counters.expect(2 * i + 1, {1, std::make_shared<Ticket>("one"), {}})));
    (void)counters.forget(2 * i + 1, cancelled("nobody wants it"));
  }
  EXPECT_EQ(counters.num_kept(), 0u);
  (void)counters.add(1, 2);
  EXPECT_EQ(counters.count(1), 2u);
}

TEST(Lifetimes, AnExpectationThatHasEndedEndsNoOther) {
  Engines engines(on_host());
  auto a = engines.make("a");
  auto first = a->expect(7, 1);
  a->forget(7);
  auto second = a->expect(7, 1);
  ASSERT_TRUE(is_ok(first) && is_ok(second));
  a->forget(7, first->get());
  EXPECT_FALSE((*second)->is_done());
  a->forget(7, second->get());
  EXPECT_EQ((*second)->wait(in_seconds(5)).code(), Code::kCancelled);
}

TEST(Lifetimes, WhatIsDiscardedIsNotCountedAnyMore) {
  Counters counters;
  auto ticket = std::make_shared<Ticket>("counts");
  (void)counters.add(1, 2);
  (void)counters.add(2, 1);
  ASSERT_TRUE(is_ok(counters.expect(2, {3, ticket, {}})));
  (void)counters.discard(1, cancelled("nobody wants it"));
  (void)counters.discard(2, cancelled("nobody wants it"));
  (void)counters.discard(3, cancelled("nobody wants it"));
  EXPECT_EQ(ticket->status().code(), Code::kCancelled);
  EXPECT_EQ(counters.num_kept(), 0u);
}

double seconds_of(clockid_t clock) {
  timespec now{};
  (void)::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A listener with a connection that nobody can take is ready all the time.
TEST(Lifetimes, WithoutDescriptorsAnEngineSleepsAllTheSame) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer asks a pipe whether memory can be read";
  Engines engines(on_host());
  auto a = engines.make("a"), b = engines.make("b");
  const std::string text = address_of(*a, *a).endpoints.front();
  const size_t colon = text.rfind(':');
  const auto port = static_cast<uint16_t>(std::stoul(text.substr(colon + 1)));
  const sys::Endpoint at = sys::resolve(text.substr(0, colon), port).value().front();
  const sys::Fd caller(::socket(at.family(), SOCK_STREAM, 0));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(::connect(caller.get(), at.address(), at.length()), 0);
  // What a thread gets that never sleeps depends on what else the machine does: this one is such.
  const double all_began = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const double own_began = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  const Deadline deadline = Deadline::after_ns(kSecond);
  while (!deadline.passed()) {
  }
  const double own = seconds_of(CLOCK_THREAD_CPUTIME_ID) - own_began;
  const double others = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - all_began - own;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_LT(others, own / 8);
  EXPECT_TRUE(is_ok(wait(b->connect(address_of(*b, *a)))));
}

// In a process that may have no thread more; root may have any number.
template <typename Body>
bool is_true_without_threads(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    const rlimit none{0, 0};
    (void)::setrlimit(RLIMIT_NPROC, &none);
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Lifetimes, WithoutThreadsThereIsNoEngineAndNoWatch) {
  Engines engines(on_host());
  EXPECT_TRUE(is_true_without_threads(
      [&] { return Engine::create(engines.options("a")).status().code() == Code::kExhausted; }));
  EXPECT_TRUE(is_true_without_threads([] {
    Watcher watcher(nullptr);
    const auto never = [](uint64_t, uint64_t) { return false; };
    bool is_exhausted = true;
    for (size_t i = 0; i < Watcher::kMostWords + 1; ++i)
      is_exhausted &=
          watcher.watch(never).status().message().find("no thread") != std::string::npos;
    return is_exhausted;
  }));
}

TEST(Lifetimes, ANameThatIsNoUtf8IsRefused) {
  EngineOptions options = Engines(Way{"local", true, "", 0, {}})
                              .options(
                                  "f\xfc"
                                  "r");
  EXPECT_TRUE(failed(Engine::create(options).status(), Code::kInvalidArgument, "no UTF-8"));
  options.name =
      "r\xc3\xa9"
      "sident";
  EXPECT_TRUE(is_ok(Engine::create(options).status()));
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

// What is expected anew by then would be ended by nobody.
TEST(Lifetimes, WhatACallbackExpectsOfAnEngineThatEndsIsRefused) {
  Engines engines(on_host());
  auto a = engines.make("a");
  Status again;
  auto expected = a->expect(
      1, 1, [&, engine = a.get()](const Status&) { again = engine->expect(1, 1).status(); });
  ASSERT_TRUE(is_ok(expected));
  a.reset();
  EXPECT_TRUE(failed(again, Code::kCancelled, "was closed"));
}

}  // namespace
}  // namespace braid::engine::test
