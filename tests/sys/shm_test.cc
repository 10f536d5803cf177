// Segments between threads and processes, what a full machine answers, and futexes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "base/units.h"
#include "sys/shm/api.h"
#include "sys/shm/fake.h"
#include "sys/shm/futex.h"

namespace braid::sys {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::byte byte_of(uint64_t i) { return static_cast<std::byte>(i * 131 + (i >> 12)); }

// Runs `body` in a forked process and returns its exit code, or -signal.
template <typename Body>
int in_child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

class SegmentSizes : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SegmentSizes, IsZeroedAndSeenByAPeer) {
  const uint64_t bytes = GetParam();
  auto made = real_shared_memory().create("test", bytes);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ(made->bytes(), bytes);
  for (uint64_t i = 0; i < bytes; i += 997) ASSERT_EQ(made->data()[i], std::byte{0});
  auto peer = real_shared_memory().open_peer(::getpid(), made->fd(), bytes);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  EXPECT_EQ(peer->fd(), -1);
  EXPECT_NE(peer->data(), made->data());
  for (uint64_t i = 0; i < bytes; ++i) made->data()[i] = byte_of(i);
  for (uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(peer->data()[i], byte_of(i)) << i;
}

INSTANTIATE_TEST_SUITE_P(Sizes, SegmentSizes,
                         ::testing::Values(1, 4096, 4097, 2_MiB - 1, 2_MiB, 5_MiB + 3));

TEST(SharedMemory, AnotherProcessReadsAndWrites) {
  auto made = std::move(real_shared_memory().create("test", 64_KiB)).value();
  made.data()[100] = std::byte{42};
  const pid_t owner = ::getpid();
  const int fd = made.fd();
  EXPECT_EQ(in_child([&] {
              auto peer = real_shared_memory().open_peer(owner, fd, 64_KiB);
              if (!peer.ok() || peer->data()[100] != std::byte{42}) return 1;
              peer->data()[101] = std::byte{43};
              return 0;
            }),
            0);
  EXPECT_EQ(made.data()[101], std::byte{43});
}

/// What this process maps from /dev/shm; what lies there besides is other programs'.
size_t num_mapped_files() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find(" /dev/shm/") != std::string::npos;
  return count;
}

// The memory lives as long as anybody maps it, and no file system ever shows it.
TEST(SharedMemory, OutlivesItsMakerAndLeavesNothingBehind) {
  const size_t before = num_mapped_files();
  auto made = std::move(real_shared_memory().create("test", 1_MiB)).value();
  auto peer = std::move(real_shared_memory().open_peer(::getpid(), made.fd(), 1_MiB)).value();
  made.data()[77] = std::byte{7};
  EXPECT_EQ(num_mapped_files(), before);
  made = Segment();
  EXPECT_EQ(peer.data()[77], std::byte{7});
}

TEST(SharedMemory, SizeCannotBeChangedUnderAMapping) {
  auto made = std::move(real_shared_memory().create("test", 64_KiB)).value();
  EXPECT_NE(::ftruncate(made.fd(), 0), 0);
  EXPECT_NE(::ftruncate(made.fd(), 1_MiB), 0);
}

TEST(SharedMemory, MovesKeepTheMapping) {
  auto a = std::move(real_shared_memory().create("test", 4096)).value();
  std::byte* const data = a.data();
  Segment b(std::move(a));
  EXPECT_FALSE(a.is_mapped());  // NOLINT: looking at a moved-from segment is the point
  Segment c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  data[0] = std::byte{1};
}

TEST(SharedMemory, ZeroBytesAreRefused) {
  EXPECT_EQ(real_shared_memory().create("test", 0).status().code(), Code::kInvalidArgument);
}

// More than any machine has: a Status, neither SIGBUS nor a kill.
TEST(SharedMemory, AnImpossibleSizeIsAStatus) {
  const Status status = real_shared_memory().create("test", uint64_t{1} << 52).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("shared memory test"));
}

TEST(SharedMemory, AFileSizeLimitIsAStatus) {
  EXPECT_EQ(in_child([] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{65536, 65536};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              return real_shared_memory().create("test", 1_MiB).ok() ? 1 : 0;
            }),
            0);
}

TEST(SharedMemory, NoDescriptorsLeftIsExhausted) {
  EXPECT_EQ(in_child([] {
              const rlimit limit{3, 3};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              return real_shared_memory().create("test", 4096).status().code() == Code::kExhausted
                         ? 0
                         : 1;
            }),
            0);
}

TEST(SharedMemory, OpeningWhatIsNotThereIsUnavailable) {
  const Status no_fd = real_shared_memory().open_peer(::getpid(), 9999, 4096).status();
  EXPECT_EQ(no_fd.code(), Code::kUnavailable);
  EXPECT_THAT(no_fd.message(), AllOf(HasSubstr(std::to_string(::getpid())), HasSubstr("9999")));
  EXPECT_EQ(real_shared_memory().open_peer(0x7fffffff, 3, 4096).status().code(),
            Code::kUnavailable);
}

TEST(SharedMemory, OpeningSomethingElseOrSmallerIsRefused) {
  auto made = std::move(real_shared_memory().create("test", 4096)).value();
  const Status small = real_shared_memory().open_peer(::getpid(), made.fd(), 8192).status();
  EXPECT_EQ(small.code(), Code::kInvalidArgument);
  EXPECT_THAT(small.message(), HasSubstr("asked for 8192 bytes, found 4096"));
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(real_shared_memory().open_peer(::getpid(), null.get(), 4096).status().code(),
            Code::kInvalidArgument);
}

TEST(FakeSharedMemory, FailsWhereToldAndWorksElsewhere) {
  FakeSharedMemory fake;
  fake.fail_create_at(2, ENOSPC);
  fake.fail_open_at(1, EACCES);
  auto first = fake.create("a", 4096);
  ASSERT_TRUE(first.ok());
  const Status second = fake.create("b", 3_GiB).status();
  EXPECT_EQ(second.code(), Code::kExhausted);
  EXPECT_THAT(second.message(),
              AllOf(HasSubstr("shared memory b"), HasSubstr("3 GiB"), HasSubstr("No space left")));
  EXPECT_TRUE(fake.create("c", 4096).ok());
  const Status denied = fake.open_peer(::getpid(), first->fd(), 4096).status();
  EXPECT_EQ(denied.code(), Code::kUnavailable);
  EXPECT_THAT(denied.message(), HasSubstr("same user"));
  EXPECT_TRUE(fake.open_peer(::getpid(), first->fd(), 4096).ok());
  EXPECT_EQ(fake.creates(), 3);
  EXPECT_EQ(fake.opens(), 2);
}

TEST(Futex, ReturnsAtOnceWhenTheWordChanged) {
  const std::atomic<uint32_t> word{5};
  EXPECT_TRUE(futex_wait(word, 4, Deadline::after_ns(10_s)));
}

TEST(Futex, ComesBackAtTheDeadline) {
  const std::atomic<uint32_t> word{5};
  const int64_t start_ns = now_ns();
  while (futex_wait(word, 5, Deadline::at_ns(start_ns + 50_ms))) {
  }
  EXPECT_GE(now_ns() - start_ns, 50_ms);
  EXPECT_LT(now_ns() - start_ns, 5_s);
  EXPECT_FALSE(futex_wait(word, 5, Deadline::after_ns(-1)));
}

TEST(Futex, WakesASleeperInAnotherProcess) {
  auto made = std::move(real_shared_memory().create("test", 4096)).value();
  auto& word = *new (made.data()) std::atomic<uint32_t>(0);
  const pid_t owner = ::getpid();
  const int fd = made.fd();
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    word.store(1, std::memory_order_release);
    futex_wake(word, 1);
  });
  EXPECT_EQ(in_child([&] {
              // Mapped again, at another address: the kernel must find the sleeper by the page.
              auto peer = real_shared_memory().open_peer(owner, fd, 4096);
              if (!peer.ok()) return 1;
              auto& theirs = *reinterpret_cast<std::atomic<uint32_t>*>(peer->data());
              const Deadline deadline = Deadline::after_ns(10_s);
              while (theirs.load(std::memory_order_acquire) == 0)
                if (!futex_wait(theirs, 0, deadline)) return 2;
              return 0;
            }),
            0);
  waker.join();
}

TEST(Futex, NobodySleepsNobodyWakes) {
  const std::atomic<uint32_t> word{0};
  EXPECT_EQ(futex_wake(word, 8), 0);
}

}  // namespace
}  // namespace braid::sys
