// Steps that all ranks take or none: the first rank that was not ok is everyone's answer.
#include "group/agree.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/thread_group.h"

namespace braid::group {
namespace {

constexpr int kSize = 3;
Deadline in_ten_seconds() { return Deadline::after_ns(10'000'000'000); }

void on_ranks(const std::function<void(Group&)>& body) {
  auto hub = std::make_shared<test::ThreadHub>(kSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] {
      test::ThreadGroup group(hub, rank);
      body(group);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Agree, PayloadsOfAnyBytesComeFromEveryRank) {
  on_ranks([](Group& group) {
    const std::string own = std::string("-a\0+", 4) + std::to_string(group.rank());
    const auto all = agree(group, "step", {}, own, in_ten_seconds());
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    for (size_t r = 0; r < all->size(); ++r)
      EXPECT_EQ(all.value()[r], std::string("-a\0+", 4) + std::to_string(r));
  });
}

TEST(Agree, TheFirstRefusalIsEveryonesWithItsCodeAndRank) {
  on_ranks([](Group& group) {
    const Status own = group.rank() == 0   ? Status()
                       : group.rank() == 1 ? exhausted("no memory for {} bytes", 5)
                                           : timeout("too late");
    const auto all = agree(group, "step", own, "unused", in_ten_seconds());
    EXPECT_EQ(all.status().code(), Code::kExhausted);
    EXPECT_EQ(all.status().message(), "rank 1: no memory for 5 bytes");
  });
}

TEST(Agree, EveryCodeIsCarriedOver) {
  for (int code = 1; code <= static_cast<int>(Code::kInternal); ++code)
    on_ranks([&](Group& group) {
      const Status own = group.rank() == 2 ? Status(static_cast<Code>(code), "why") : Status();
      EXPECT_EQ(agree(group, "step", own, "", in_ten_seconds()).status().code(),
                static_cast<Code>(code));
    });
}

// What no agree() wrote is a refusal, never a payload or a code that is none.
TEST(Agree, OtherBytesAreARefusal) {
  for (const std::string& told : {std::string(), std::string("-"), std::string("-~x"),
                                  std::string("-`x"), std::string("x"), std::string("-a")})
    on_ranks([&](Group& group) {
      if (group.rank() == 1) {
        EXPECT_TRUE(group.exchange("step", told, in_ten_seconds()).ok());
        return;
      }
      const auto all = agree(group, "step", {}, "", in_ten_seconds());
      EXPECT_EQ(all.status().code(), Code::kInternal) << "'" << told << "'";
      EXPECT_NE(all.status().message().find("rank 1"), std::string::npos);
    });
}

}  // namespace
}  // namespace braid::group
