#include "transport/nvlink/lent_memory.h"

#include <gtest/gtest.h>

#include <thread>

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

// The driver frees in the context that is current: that of the thread that lets go may be another.
TEST_F(LentMemory, IsFreedByAnyThread) {
  Hold hold = lend(cuda_, 1, alloc(1));
  std::thread([&] { hold.reset(); }).join();
  EXPECT_EQ(num_alive(), 0U);
}

}  // namespace
}  // namespace braid::nvlink
