// Pieces of work that wait for each other come to an end side by side.
#include "bindings/nccl/threads.h"

#include <gtest/gtest.h>

#include <barrier>
#include <vector>

namespace braid::nccl {
namespace {

TEST(SideBySide, PiecesMayWaitForEachOther) {
  for (const size_t num : {0, 1, 2, 7}) {
    std::barrier<> all(static_cast<std::ptrdiff_t>(num + (num == 0 ? 1 : 0)));
    std::vector<std::thread::id> threads(num);
    side_by_side(num, [&](size_t i) {
      all.arrive_and_wait();
      threads[i] = std::this_thread::get_id();
    });
    for (size_t i = 0; i < num; ++i)
      EXPECT_EQ(threads[i] == std::this_thread::get_id(), i + 1 == num) << "the last one is ours";
  }
}

TEST(SideBySide, BesideGoesOnWhileTheCallerDoesSomethingElse) {
  std::barrier<> both(2);
  int number = 0;
  {
    Beside other;
    other.begin([&] {
      both.arrive_and_wait();
      number = 7;
    });
    both.arrive_and_wait();
  }
  EXPECT_EQ(number, 7) << "its end waits";
}

}  // namespace
}  // namespace braid::nccl
