// A target that is asked for much at once, by a source of a test's own.
#include "engine/target.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>

#include "engines.h"

namespace braid::engine::test {
namespace {

/// A target and the session of a source that is connected to it, on one thread: the target serves only when
/// it is told to.
struct Asked {
  Asked() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ControlSocket ours{sys::Fd(fds[0])}, theirs{sys::Fd(fds[1])};
    ours.seal("a", "b");
    theirs.seal("b", "a");
    source.attach(std::move(ours), 0);
    target.attach(std::move(theirs), 0);
    source.send(FrameType::kOpen, encode(Open{}));
  }
  /// A transfer that says it has landed, and nothing else.
  void state(uint64_t transfer) {
    Landed landed;
    landed.transfer = transfer;
    landed.delivery.has_immediate = true;
    landed.delivery.immediate = 1;
    landed.delivery.count = 1;
    source.send(FrameType::kLanded, encode(landed));
    ++num_sent;
  }
  void cancel(uint64_t transfer) {
    source.send(FrameType::kCancel, encode(TransferNote{transfer}));
    ++num_sent;
  }
  /// The target takes all that was sent; what that took of the processor's time.
  int64_t take_ns() {
    const int64_t began = computed_ns();
    while (target.received() != num_sent && source.is_attached()) {
      EXPECT_TRUE(is_ok(source.flush()));
      (void)target.converse();
    }
    return computed_ns() - began;
  }
  /// What the target has answered.
  void hear() {
    constexpr int kRounds = 1000;
    for (int i = 0; i < kRounds && source.is_attached(); ++i) {
      (void)target.converse();
      EXPECT_TRUE(is_ok(source.pump([this](const Frame& frame) { return on_frame(frame); })));
    }
  }
  Status on_frame(const Frame& frame) {
    num_cancelled += frame.type == FrameType::kCancelled;
    if (frame.type != FrameType::kDone) return {};
    BRAID_ASSIGN_OR_RETURN(const Done done, decode_done(frame.body));
    num_done += done.transfers.size();
    return {};
  }
  static int64_t computed_ns() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
  }

  Ground ground{EngineOptions{}, "a token of tests"};
  Target target{ground, Incarnation{}};
  Session source;
  uint64_t num_sent = 1;
  size_t num_done = 0, num_cancelled = 0;
};

// A deadline that passes for thousands of transfers at once must hold up no other peer of the target.
TEST(Target, ManyThatAreTakenBackAtOnceTakeNoLongerThanTheyTookToCome) {
  constexpr uint64_t kMany = 20'000;
  Asked asked;
  for (uint64_t i = 1; i <= kMany; ++i) asked.state(i);
  const int64_t came_ns = asked.take_ns();
  for (uint64_t i = 1; i <= kMany; ++i) asked.cancel(i);
  const int64_t taken_back_ns = asked.take_ns();
  EXPECT_LT(taken_back_ns, 5 * came_ns);
  (void)asked.target.progress();
  asked.hear();
  EXPECT_EQ(asked.num_cancelled, kMany);
  EXPECT_EQ(asked.num_done, 0u);
  EXPECT_EQ(asked.ground.counters.count(1), 0u);
}

TEST(Target, WhatIsBehindTransfersThatWereTakenBackIsServed) {
  Asked asked;
  for (uint64_t i = 1; i <= 100; ++i) asked.state(i);
  for (uint64_t i = 1; i <= 100; ++i)
    if (i % 10 != 0) asked.cancel(i);
  asked.cancel(7);  // again
  asked.cancel(1000);
  (void)asked.take_ns();
  EXPECT_NE(asked.target.describe().find("10 orders waiting"), std::string::npos)
      << asked.target.describe();
  (void)asked.target.progress();
  asked.hear();
  EXPECT_EQ(asked.num_cancelled, 92u);
  EXPECT_EQ(asked.num_done, 10u);
  EXPECT_EQ(asked.ground.counters.count(1), 10u);
  EXPECT_FALSE(asked.target.must_poll()) << "something is left in the queue";
}

// More than one frame holds: the other side would refuse it, on every socket anew.
TEST(Target, AsManyAsEndAtOnceAreToldInSeveralFrames) {
  constexpr uint64_t kMany = 140'000;
  Asked asked;
  for (uint64_t i = 1; i <= kMany; ++i) asked.state(i);
  (void)asked.take_ns();
  (void)asked.target.progress();
  asked.hear();
  EXPECT_EQ(asked.num_done, kMany);
}

}  // namespace
}  // namespace braid::engine::test
