#include "transport/nvlink/lent_memory.h"

#include <gtest/gtest.h>

#include <semaphore>
#include <thread>

#include "support/alone.h"
#include "sys/cuda/fake.h"

namespace braid::nvlink {
namespace {

class LentMemory : public testing::Test {
 protected:
  sys::DevicePtr alloc(int device) {
    EXPECT_TRUE(cuda_.use_device(device).ok());
    return cuda_.alloc(100).value();
  }
  uint64_t num_alive() const { return cuda_.alive().memory; }
  sys::FakeCuda cuda_{2};
};

TEST_F(LentMemory, IsFreedByWhoeverLetsGoLast) {
  for (const bool owner_is_last : {false, true}) {
    const sys::DevicePtr memory = alloc(1);
    Hold owner = lend(cuda_, 1, memory);
    Hold peer = borrow(memory);
    ASSERT_NE(peer, nullptr);
    (owner_is_last ? peer : owner).reset();
    EXPECT_EQ(num_alive(), 1U);
    (owner_is_last ? owner : peer).reset();
    if (!owner_is_last) await_frees();
    EXPECT_EQ(num_alive(), 0U);
    EXPECT_EQ(borrow(memory), nullptr);
  }
}

TEST_F(LentMemory, OfAnotherIsNoneOfOurs) {
  const sys::DevicePtr lent = alloc(0), users = alloc(0);
  const Hold hold = lend(cuda_, 0, lent);
  EXPECT_EQ(borrow(users), nullptr);
  EXPECT_EQ(borrow(lent + 1), nullptr) << "what is lent is told by its first byte";
  EXPECT_TRUE(cuda_.free(users).ok());
}

/// Freeing waits for the GPU's work, as the driver's does.
class BusyCuda : public sys::FakeCuda {
 public:
  using FakeCuda::FakeCuda;
  Status free(sys::DevicePtr memory) override {
    work_.acquire();
    return FakeCuda::free(memory);
  }
  void end_work() { work_.release(); }

 private:
  std::binary_semaphore work_{0};
};

// The work may wait for a call that this very thread is to make.
TEST(BusyLentMemory, APeerThatLetsGoLastWaitsForNoWork) {
  BusyCuda cuda(2);
  ASSERT_TRUE(cuda.use_device(1).ok());
  const sys::DevicePtr memory = cuda.alloc(100).value();
  Hold owner = lend(cuda, 1, memory);
  Hold peer = borrow(memory);
  owner.reset();
  peer.reset();
  EXPECT_EQ(borrow(memory), nullptr);
  EXPECT_EQ(cuda.alive().memory, 1U);
  cuda.end_work();
  await_frees();
  EXPECT_EQ(cuda.alive().memory, 0U);
}

// The driver frees in the context that is current: that of the thread that lets go may be another.
TEST_F(LentMemory, IsFreedByAnyThread) {
  Hold hold = lend(cuda_, 1, alloc(1));
  std::thread([&] { hold.reset(); }).join();
  EXPECT_EQ(num_alive(), 0U);
}

// Who lets go is perhaps in a destructor, and cannot do anything about it.
TEST_F(LentMemory, DISABLED_WithoutThreads) {
  const sys::DevicePtr memory = alloc(1);
  Hold owner = lend(cuda_, 1, memory);
  Hold peer = borrow(memory);
  test::forbid_threads();
  owner.reset();
  peer.reset();
  EXPECT_EQ(num_alive(), 1U);
  test::allow_threads();
  await_frees();
  EXPECT_EQ(num_alive(), 0U);
  test::end_alone();
}

TEST_F(LentMemory, IsKeptWhileThereIsNoThread) {
  test::run_alone("LentMemory.DISABLED_WithoutThreads");
}

}  // namespace
}  // namespace braid::nvlink
