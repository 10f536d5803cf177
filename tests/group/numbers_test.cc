// Numbers that ranks tell each other.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "group/agree.h"
#include "support/thread_group.h"

namespace braid::group {
namespace {

constexpr int kRanks = 3;

Deadline in_time() { return Deadline::after_ns(10'000'000'000); }

/// Every rank's answer to `tell`.
void run_ranks(const std::function<void(Group&)>& tell) {
  auto hub = std::make_shared<test::ThreadHub>(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      test::ThreadGroup group(hub, rank);
      tell(group);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ExchangeNumbers, AreThoseOfEveryRank) {
  run_ranks([](Group& group) {
    const int64_t own[] = {group.rank(), std::numeric_limits<int64_t>::min(), -7 * group.rank()};
    const auto all = exchange_numbers(group, "numbers", own, in_time());
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    ASSERT_EQ(all->size(), static_cast<size_t>(kRanks));
    for (int64_t r = 0; r < kRanks; ++r)
      EXPECT_EQ(all.value()[static_cast<size_t>(r)],
                (std::vector<int64_t>{r, std::numeric_limits<int64_t>::min(), -7 * r}));
  });
}

// What could not be read counted as 0.
TEST(ExchangeNumbers, OtherTextIsRefusedOnEveryRank) {
  for (const char* text : {"", "5", "5 6", "5 x ", "5 6 7 ", "5  6 ", "99999999999999999999 1 "}) {
    run_ranks([&](Group& group) {
      const int64_t own[] = {5, 6};
      if (group.rank() == 1) {
        EXPECT_TRUE(group.exchange("numbers", text, in_time()).ok());
        return;
      }
      const auto all = exchange_numbers(group, "numbers", own, in_time());
      EXPECT_EQ(all.status().code(), Code::kInternal) << "'" << text << "'";
      EXPECT_NE(all.status().message().find("rank 1"), std::string::npos);
    });
  }
}

}  // namespace
}  // namespace braid::group
