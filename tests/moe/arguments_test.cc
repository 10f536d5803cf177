// What arguments are refused by their shape alone. moe/buffer_test.cc has what a call then says.
#include "moe/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/units.h"
#include "moe/call_shape.h"

namespace braid::moe {
namespace {

using ::testing::HasSubstr;

Dispatch dispatch_of(uint64_t row_bytes, uint64_t side_bytes) {
  Dispatch d;
  d.row_bytes = row_bytes;
  d.side_bytes = side_bytes;
  return d;
}

// In flags, and in kernels that move them, they would be others: 4 GiB and a row are that row.
TEST(MoeArguments, RowsBeyondThirtyTwoBitsAreRefused) {
  constexpr uint64_t kRow = 512;
  EXPECT_EQ(shape_of(dispatch_of(4_GiB + kRow, 0)), shape_of(dispatch_of(kRow, 0)));
  for (const uint64_t row : {4_GiB + kRow, 4_GiB, 1_GiB + 16})
    EXPECT_THAT(check_shape(dispatch_of(row, 0), 1).message(),
                HasSubstr("argument x: expected rows of at most"));
  for (const uint64_t side : {4_GiB + 4, 1_GiB + 4})
    EXPECT_THAT(check_shape(dispatch_of(kRow, side), 1).message(),
                HasSubstr("argument x scales: expected rows of at most"));
  EXPECT_TRUE(check_shape(dispatch_of(1_GiB, 1_GiB), 1).ok());

  LowLatencyDispatch low_latency;
  low_latency.num_experts = low_latency.num_topk = low_latency.max_tokens = 1;
  low_latency.dtype = Dtype::kBfloat16;
  low_latency.hidden = 2_GiB + kRow;
  EXPECT_THAT(check_shape(low_latency, 1).message(), HasSubstr("at most 1073741824 bytes"));
  Combine combine;
  combine.dtype = Dtype::kFloat32;
  combine.hidden = 1_GiB + kRow;
  EXPECT_THAT(check_shape(combine).message(), HasSubstr("at most 1073741824 bytes"));
}

}  // namespace
}  // namespace braid::moe
