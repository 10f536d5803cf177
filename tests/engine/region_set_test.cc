// What a source keeps of the regions that its target has unregistered.
#include "engine/region_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace braid::engine::test {
namespace {

TEST(RegionSet, AreThoseThatWereInsertedInAnyOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> all(64);
    std::iota(all.begin(), all.end(), 1);
    std::shuffle(all.begin(), all.end(), random);
    RegionSet numbers;
    std::set<uint64_t> expected;
    for (const uint64_t number : all) {
      numbers.insert(number);
      numbers.insert(number);
      expected.insert(number);
      for (uint64_t n = 0; n < 66; ++n) ASSERT_EQ(numbers.contains(n), expected.contains(n));
    }
    EXPECT_EQ(numbers.num_ranges(), 1u);
  }
}

// A target that lives long, and has a few regions all the time.
TEST(RegionSet, TakeNoMoreRoomThanThereAreRegionsLeft) {
  RegionSet numbers;
  std::mt19937 random(1);
  std::vector<uint64_t> alive = {1, 2, 3, 4};
  for (uint64_t next = 5; next < 100'000; ++next) {
    uint64_t& ends = alive[random() % alive.size()];
    numbers.insert(ends);
    ends = next;
    ASSERT_LE(numbers.num_ranges(), alive.size() + 1);
  }
}

}  // namespace
}  // namespace braid::engine::test
