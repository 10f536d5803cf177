// Who may take how much of BRAID_TUNE_TIME.
#include "bindings/nccl/core/race_budget.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace braid::nccl {
namespace {

TEST(RaceBudget, InANodeEachMayTakeHalfOfWhatIsLeft) {
  RaceBudget budget(8_s);
  EXPECT_EQ(budget.next_ns(), 4_s);
  budget.took(2_s);
  EXPECT_EQ(budget.next_ns(), 3_s);
  for (int race = 0; race < 20; ++race) budget.took(budget.next_ns());
  EXPECT_LT(budget.next_ns(), 1_ms);
}

// Four H200 as two nodes: small all_gathers took 4.0 of 16 s and large ones 5.6, so that the small reduce_scatters
// had 3.2, in which they came to 512 KiB.
TEST(RaceBudget, OverNodesTheLastHasAsMuchAsTheFirst) {
  RaceBudget budget(8_s);
  budget.go_over_nodes();
  for (int race = 0; race < 4; ++race) {
    EXPECT_EQ(budget.next_ns(), 4_s);
    budget.took(4_s);
  }
  EXPECT_EQ(budget.next_ns(), 0);
}

TEST(RaceBudget, WhatOneLeavesTheOthersHave) {
  RaceBudget budget(8_s);
  budget.go_over_nodes();
  budget.took(1_s);
  EXPECT_EQ(budget.next_ns(), 5_s);
  budget.took(0);  // known from an earlier job
  budget.took(0);
  EXPECT_EQ(budget.next_ns(), 15_s);
  budget.took(20_s);  // the lap under way at its end
  EXPECT_EQ(budget.next_ns(), 0);
}

}  // namespace
}  // namespace braid::nccl
