#include "bindings/nccl/comm_config.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <vector>

namespace braid::nccl {
namespace {

/// As nccl.h of 2.28 has it: offsets of NCCL_CONFIG_INITIALIZER's fields.
enum Field {
  kBlocking = 16,
  kCga = 20,
  kMin = 24,
  kMax = 28,
  kName = 48,
  kPolicy = 60,
  kNvls = 68
};

std::vector<char> config_of(size_t size = 72) {
  std::vector<char> config(96, 0);
  const uint32_t magic = 0xcafebeef;
  const int undefined = INT_MIN;
  std::memcpy(config.data(), &size, sizeof size);
  std::memcpy(config.data() + 8, &magic, sizeof magic);
  for (const size_t at : {16, 20, 24, 28, 40, 44, 56, 60, 64, 68})
    std::memcpy(config.data() + at, &undefined, sizeof undefined);
  return config;
}
std::vector<char> with(size_t at, int value, size_t size = 72) {
  std::vector<char> config = config_of(size);
  std::memcpy(config.data() + at, &value, sizeof value);
  return config;
}

TEST(CommConfig, NothingIsAskedFor) {
  EXPECT_EQ(speed_of_config(nullptr), 0U);
  EXPECT_EQ(speed_of_config(config_of().data()), 0U);
  EXPECT_EQ(speed_of_config(with(kBlocking, 0).data()), 0U) << "that changes no speed";
  std::vector<char> named = config_of();
  const char* name = "a name";
  std::memcpy(named.data() + kName, &name, sizeof name);
  EXPECT_EQ(speed_of_config(named.data()), 0U) << "an address says nothing";
}

TEST(CommConfig, BlocksAndPoliciesAreToldApart) {
  std::set<uint64_t> all{0};
  for (const Field field : {kCga, kMin, kMax, kPolicy, kNvls})
    for (const int value : {0, 1, 2, 32}) all.insert(speed_of_config(with(field, value).data()));
  EXPECT_EQ(all.size(), 21U);
}

TEST(CommConfig, AnOlderOneEndsEarlier) {
  EXPECT_NE(speed_of_config(with(kMax, 4, 40).data()), 0U);
  EXPECT_EQ(speed_of_config(with(kPolicy, 2, 56).data()), 0U) << "there is no such field in it";
}

TEST(CommConfig, WhatIsNoneSaysNothing) {
  std::vector<char> other = with(kMax, 4);
  other[8] = 0;
  EXPECT_EQ(speed_of_config(other.data()), 0U);
  EXPECT_EQ(speed_of_config(with(kMax, 4, 3).data()), 0U);
  EXPECT_EQ(speed_of_config(with(kMax, 4, SIZE_MAX).data()), 0U);
}

// One block for every two nodes, as a power of two: fewer would slow NCCL down, each takes memory.
TEST(CommConfig, ARailHasFewBlocks) {
  const std::map<int, int> blocks{{2, 2}, {3, 2}, {4, 2}, {5, 4}, {8, 4}, {9, 8}, {16, 8}, {64, 8}};
  for (const auto& [nodes, most] : blocks) {
    const RailConfig config = config_of_rails(nodes);
    EXPECT_EQ(config.max_ctas, most) << nodes << " nodes";
    EXPECT_EQ(config.min_ctas, INT_MIN);
    EXPECT_EQ(config.blocking, 1);
  }
}

}  // namespace
}  // namespace braid::nccl
