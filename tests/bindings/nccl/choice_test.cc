#include "bindings/nccl/choice.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace braid::nccl {
namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

braid_nccl_choice won_at(std::initializer_list<size_t> sizes) {
  braid_nccl_choice choice{(1U << kNumRaced) - 1, 0};
  for (const size_t i : sizes) choice.won |= 1U << i;
  return choice;
}

TEST(Choice, WhatIsNotMeasuredIsNccls) {
  for (const uint64_t bytes : {uint64_t{1}, 8 * kKiB, 8 * kMiB, 512 * kMiB, 8 * kGiB})
    EXPECT_FALSE(is_braids({}, bytes)) << bytes;
  braid_nccl_choice damaged = won_at({0, 1, 2, 3, 4, 5, 6, 7, 8});
  damaged.measured = 1;  // a won size that was not measured says nothing
  EXPECT_TRUE(is_braids(damaged, 8 * kKiB));
  EXPECT_FALSE(is_braids(damaged, 32 * kKiB));
}

TEST(Choice, BetweenTwoSizesBothMustBeWon) {
  const braid_nccl_choice choice = won_at({3, 4, 6});  // 512 KiB, 2 MiB, 32 MiB
  EXPECT_FALSE(is_braids(choice, 128 * kKiB));
  EXPECT_FALSE(is_braids(choice, 512 * kKiB - 1));
  EXPECT_TRUE(is_braids(choice, 512 * kKiB));
  EXPECT_TRUE(is_braids(choice, 512 * kKiB + 1));
  EXPECT_TRUE(is_braids(choice, 2 * kMiB));
  EXPECT_FALSE(is_braids(choice, 2 * kMiB + 1));
  EXPECT_FALSE(is_braids(choice, 32 * kMiB - 1));
  EXPECT_TRUE(is_braids(choice, 32 * kMiB));
  EXPECT_FALSE(is_braids(choice, 32 * kMiB + 1));
}

TEST(Choice, TheSmallestSpeaksForAllBelowIt) {
  EXPECT_TRUE(is_braids(won_at({0}), 1));
  EXPECT_FALSE(is_braids(won_at({1}), 1));
  EXPECT_FALSE(is_braids(won_at({1}), 8 * kKiB + 1));
}

TEST(Choice, TheLargestSpeaksForAllAboveItWithTheOneBefore) {
  EXPECT_TRUE(is_braids(won_at({7, 8}), 512 * kMiB + 1));
  EXPECT_TRUE(is_braids(won_at({7, 8}), 64 * kGiB));
  EXPECT_FALSE(is_braids(won_at({8}), 512 * kMiB + 1)) << "no trend: chance, or an island";
  EXPECT_FALSE(is_braids(won_at({7}), 512 * kMiB + 1));
  EXPECT_TRUE(is_braids(won_at({8}), 512 * kMiB));
}

}  // namespace
}  // namespace braid::nccl
