// What one round of a copier does of an order.
#include "engine/copier.h"

#include <unistd.h>

#include "engines.h"

namespace braid::engine::test {
namespace {

TEST(Copier, OneLongStretchIsCopiedInRounds) {
  constexpr size_t kBytes = (40 << 20) + 5;
  Ground ground(EngineOptions{}, "a token of tests");
  std::vector<std::byte> from = pattern(kBytes, 1), to(kBytes);
  auto region = ground.regions.add(to.data(), kBytes, -1);
  ASSERT_TRUE(is_ok(region));
  CopyOrder order;
  order.pull.planes = {{(*region)->id, 0, 0, 0}};
  order.pull.is_last = true;
  order.pull.stretches = {{reinterpret_cast<uint64_t>(from.data()), 0, kBytes}};
  Copier copier(ground);
  copier.set_source(::getpid());
  ASSERT_TRUE(is_ok(copier.advance(order)));
  EXPECT_NE(from, to) << "all of it was copied between two looks at the sockets";
  for (int round = 0; round < 100 && !copier.is_done(order).value(); ++round)
    ASSERT_TRUE(is_ok(copier.advance(order)));
  EXPECT_EQ(from, to);
}

}  // namespace
}  // namespace braid::engine::test
