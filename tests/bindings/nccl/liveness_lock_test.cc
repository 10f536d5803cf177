// LivenessLock between processes: claims live and die with them, and with nothing else.
#include "bindings/nccl/core/liveness_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace braid::nccl {
namespace {

class PresenceTest : public testing::Test {
 protected:
  ~PresenceTest() override { std::remove(path_.c_str()); }

  LivenessLock present() {
    auto made = LivenessLock::on(sys::Fd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  /// A child that claims `seat` and goes on with `then`, which ends it.
  template <typename Then>
  pid_t claimer(uint32_t seat, const Then& then) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      LivenessLock theirs = present();
      const char said = theirs.claim(seat).ok() ? 'y' : 'n';
      if (write(ready[1], &said, 1) != 1) _exit(1);
      then(theirs);
      _exit(0);
    }
    char said = 0;
    EXPECT_EQ(read(ready[0], &said, 1), 1);
    EXPECT_EQ(said, 'y');
    close(ready[0]);
    close(ready[1]);
    return child;
  }
  static void wait_for(pid_t child) {
    int code = -1;
    EXPECT_EQ(waitpid(child, &code, 0), child);
  }

  const std::string path_ = testing::TempDir() + "/liveness " + std::to_string(getpid());
};

TEST_F(PresenceTest, AClaimLivesAsLongAsItsProcess) {
  const LivenessLock ours = present();
  EXPECT_FALSE(ours.is_claimed_by_another(3));
  const pid_t child = claimer(3, [](LivenessLock&) { pause(); });
  EXPECT_TRUE(ours.is_claimed_by_another(3));
  EXPECT_FALSE(ours.is_claimed_by_another(2));
  kill(child, SIGKILL);
  wait_for(child);
  EXPECT_FALSE(ours.is_claimed_by_another(3));
}

TEST_F(PresenceTest, AForkKeepsNoClaimAlive) {
  const LivenessLock ours = present();
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  const pid_t child = claimer(0, [&](LivenessLock&) {
    if (fork() == 0) {
      char end = 0;
      close(hold[1]);
      (void)!read(hold[0], &end, 1);  // until the test lets go
    }
  });
  wait_for(child);
  EXPECT_FALSE(ours.is_claimed_by_another(0));
  close(hold[1]);
  close(hold[0]);
}

// Closing one of a process's descriptors of a file would give up the claims of all.
TEST_F(PresenceTest, SeveralOfOneProcessDoNotGiveUpEachOthersClaims) {
  const LivenessLock ours = present();
  const pid_t child = claimer(1, [this](LivenessLock& theirs) {
    {
      LivenessLock second = present();
      if (!second.claim(2).ok()) _exit(1);
    }
    if (theirs.is_claimed_by_another(1)) _exit(1);  // it is their own
    pause();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(ours.is_claimed_by_another(1));
  EXPECT_TRUE(ours.is_claimed_by_another(2)) << "until the last one ends";
  kill(child, SIGKILL);
  wait_for(child);
}

TEST_F(PresenceTest, TheLastOneGivesTheProcesssClaimsUp) {
  const pid_t child = claimer(1, [](LivenessLock& theirs) {
    theirs.end();
    pause();
  });
  LivenessLock ours = present();  // after the fork, which would have a copy of it
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(ours.is_claimed_by_another(1));
  kill(child, SIGKILL);
  wait_for(child);
  ours.end();
  EXPECT_TRUE(ours.is_claimed_by_another(1)) << "who cannot ask does not call anybody dead";
}

TEST_F(PresenceTest, KnowsWhetherANameIsItsFile) {
  const LivenessLock ours = present();
  EXPECT_TRUE(ours.is_named(path_.c_str()));
  std::remove(path_.c_str());
  EXPECT_FALSE(ours.is_named(path_.c_str()));
  const LivenessLock later = present();
  EXPECT_FALSE(ours.is_named(path_.c_str()));
  EXPECT_TRUE(later.is_named(path_.c_str()));
}

}  // namespace
}  // namespace braid::nccl
