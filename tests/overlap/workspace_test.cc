// Nothing but flags lies where any call of a comm has flags.
#include "overlap/workspace.h"

#include <gtest/gtest.h>

namespace braid::overlap {
namespace {

Gemm workspace_gemm(int32_t ranks, int32_t shard_rows, int32_t columns, int32_t depth) {
  Gemm gemm;
  gemm.dtype = Dtype::kBfloat16;
  gemm.ranks = ranks;
  gemm.shard_rows = shard_rows;
  gemm.columns = columns;
  gemm.depth = depth;
  return gemm;
}

// A wait ends when a flag is at least the call's epoch. A part or a sum of an earlier call, where this
// one looks for a flag, is taken for one that has come.
TEST(Workspace, WhatOneCallWritesIsNowhereAFlagOfAnother) {
  for (const int32_t ranks : {2, 3, 8}) {
    uint64_t last_flag = 0, first_other = UINT64_MAX;
    for (const Call call : {Call::kAgGemm, Call::kGemmRs, Call::kGemmAr, Call::kGemmArExchange})
      for (const int32_t shard_rows : {8, 128, 1024, 8192})
        for (const int32_t columns : {128, 12'288})
          for (const Form form : kAllForms)
            for (const bool splits : {false, true}) {
              if (form == Form::k256Across && shard_rows > 128) continue;
              Choice choice;
              choice.form = form;
              choice.splits = splits;
              choice.piece_rows = 64;
              const WorkspaceLayout at(call, workspace_gemm(ranks, shard_rows, columns, 4096),
                                       choice);
              EXPECT_LE(kEpochsAt + at.flags_of_one, at.flags_at);
              EXPECT_EQ(at.flags_at, kEpochsAt + kFlagRoom);
              last_flag =
                  std::max(last_flag, at.flags_at + at.flags_of_one * static_cast<uint64_t>(ranks));
              first_other = std::min({first_other, at.sums_at, at.data_at});
            }
    EXPECT_LE(last_flag, first_other) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace braid::overlap
