#include "sys/verbs/queues.h"

#include <gtest/gtest.h>

namespace braid::sys::verbs {
namespace {

constexpr QueueLimits kSoftRoce = {1'048'576, 32'767};

TEST(VerbsQueues, AreAsDeepAsAskedFor) {
  const QueueSizes sizes = plan_queues(1024, kSoftRoce).value();
  EXPECT_EQ(sizes, (QueueSizes{1024, 256, 256, 1024}));
  EXPECT_EQ(sizes.completions(), 2560u);
  EXPECT_EQ(plan_queues(1, kSoftRoce).value(), (QueueSizes{1, 1, 1, 64}))
      << "a peer may have more immediates on their way than we have writes";
}

// Whatever is asked for and allowed: what can be posted never makes more completions than fit.
TEST(VerbsQueues, NeverHoldMoreThanTheCompletionQueue) {
  for (const uint32_t depth : {1u, 7u, 64u, 1000u, 16'384u, 1u << 20, ~0u}) {
    for (const uint32_t work : {1u, 16u, 16'384u, ~0u}) {
      for (const uint32_t completions : {4u, 5u, 100u, 32'767u, 1u << 22}) {
        const auto sizes = plan_queues(depth, {work, completions});
        ASSERT_TRUE(sizes.ok()) << sizes.status().to_string();
        const QueueSizes& s = sizes.value();
        EXPECT_LE(uint64_t{s.transfers} + s.sends + s.receives + s.immediates, completions);
        for (const uint32_t size : {s.transfers, s.sends, s.receives, s.immediates}) {
          EXPECT_GE(size, 1u);
          EXPECT_LE(size, work);
        }
        EXPECT_LE(s.transfers, depth);
      }
    }
  }
}

TEST(VerbsQueues, ThatCannotBeAreRefused) {
  EXPECT_EQ(plan_queues(0, kSoftRoce).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan_queues(8, {0, 100}).status().code(), Code::kUnavailable);
  EXPECT_EQ(plan_queues(8, {16, 3}).status().code(), Code::kUnavailable);
}

TEST(VerbsCredits, AreTakenAndGivenBack) {
  Credits credits(2);
  EXPECT_TRUE(credits.take());
  EXPECT_TRUE(credits.take());
  EXPECT_FALSE(credits.take()) << "busy";
  EXPECT_EQ(credits.taken(), 2u);
  credits.give();
  EXPECT_EQ(credits.taken(), 1u);
  EXPECT_TRUE(credits.take());
  EXPECT_FALSE(Credits().take());
}

}  // namespace
}  // namespace braid::sys::verbs
