// What wakes whom.
#include "engine/wake_set.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "engines.h"
#include "sys/net/wake.h"

namespace braid::engine::test {
namespace {

struct Bed {
  sys::Wake wake = std::move(sys::Wake::create()).value();
  sys::Wake call = std::move(sys::Wake::create()).value();
  WakeSet set = std::move(WakeSet::create(wake.fd(), call.fd())).value();
  sys::Fd ours, theirs;

  Bed() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ours = sys::Fd(fds[0]);
    theirs = sys::Fd(fds[1]);
  }
  void watch() {
    const pollfd socket{ours.get(), POLLIN, 0};
    set.watch({&socket, 1});
  }
  void speak() const { ASSERT_EQ(::write(theirs.get(), "x", 1), 1); }
  bool wakes_worker(int limit_ms = 30) const {
    const int64_t began = now_ns();
    set.sleep_as_worker(limit_ms);
    return now_ns() - began < 20'000'000;
  }
  bool wakes_turn() const {
    const int64_t began = now_ns();
    set.sleep_in_turn(30);
    return now_ns() - began < 20'000'000;
  }
};

TEST(WakeSet, SocketsWakeBothUntilItIsMuted) {
  Bed bed;
  bed.watch();
  EXPECT_FALSE(bed.wakes_worker());
  bed.speak();
  EXPECT_TRUE(bed.wakes_worker());
  EXPECT_TRUE(bed.wakes_turn());
  bed.set.mute();
  EXPECT_FALSE(bed.wakes_worker());
  EXPECT_TRUE(bed.wakes_turn());
  bed.call.signal();
  EXPECT_TRUE(bed.wakes_worker());
  bed.call.drain();
  bed.set.unmute();
  EXPECT_TRUE(bed.wakes_worker());
}

TEST(WakeSet, ACallWakesTheWorkerAlone) {
  Bed bed;
  bed.call.signal();
  EXPECT_TRUE(bed.wakes_worker());
  EXPECT_FALSE(bed.wakes_turn());
  bed.call.drain();
  bed.wake.signal();
  EXPECT_TRUE(bed.wakes_worker());
  EXPECT_TRUE(bed.wakes_turn());
}

// A number that was closed and is used again, at once or by another socket.
TEST(WakeSet, AnotherSocketUnderTheSameNumber) {
  Bed bed;
  bed.watch();
  const int number = bed.ours.get();
  Bed other;
  ASSERT_EQ(::dup2(other.ours.get(), number), number);
  bed.watch();
  other.speak();
  EXPECT_TRUE(bed.wakes_worker());
}

// Whoever was forked off has our sockets, too: one that was closed here must not wake us for ever.
TEST(WakeSet, ASocketThatAnotherProcessKeepsOpen) {
  Bed bed;
  bed.watch();
  const pid_t child = ::fork();  // has the sockets and both sets
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ASSERT_EQ(::shutdown(bed.theirs.get(), SHUT_RDWR), 0);
  bed.ours.reset();
  bed.theirs.reset();  // the end of the stream is there for ever
  EXPECT_TRUE(bed.wakes_turn());
  bed.set.watch({});
  EXPECT_FALSE(bed.wakes_turn());
  EXPECT_FALSE(bed.wakes_worker());
  ::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace braid::engine::test
