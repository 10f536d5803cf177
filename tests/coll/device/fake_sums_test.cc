// The sums of fake GPUs are reduce()'s, bit for bit, whichever way they are computed.
#include "coll/device/fake_sums.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/tensors.h"

namespace braid::coll::device {
namespace {

constexpr uint64_t kNumSummed = 1003;

ReduceArgs sum_of(const std::vector<golden::Array>& operands, void* destination, uint64_t count) {
  ReduceArgs args{};
  for (size_t r = 0; r < operands.size(); ++r) args.srcs[r] = operands[r].data();
  args.dsts[0] = destination;
  args.count_elements = count;
  args.num_srcs = static_cast<int32_t>(operands.size());
  args.num_dsts = 1;
  return args;
}

TEST(FakeSums, AreThoseOfReduce) {
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp op : kAllRedOps)
      for (const int num_ranks : {1, 2, 5}) {
        const auto operands =
            test::Tensors{test::Fill::kRandomBits, dtype, num_ranks, 3}.all(0, kNumSummed);
        std::vector<const void*> srcs;
        for (const golden::Array& operand : operands) srcs.push_back(operand.data());
        golden::Array got(kNumSummed * dtype_bytes(dtype)), want(got.size());
        reduce(srcs, want.data(), kNumSummed, dtype, op);
        EXPECT_TRUE(test::fake_sum(sum_of(operands, got.data(), kNumSummed), dtype, op).ok());
        EXPECT_EQ(test::first_difference(got, want, dtype), "") << redop_name(op);
      }
}

#if defined(BRAID_PLAIN_SUMS)
TEST(FakeSums, DoNotReachBeyondMemory) {
  const Dtype dtype = Dtype::kFloat32;
  const auto operands = test::Tensors{test::Fill::kExactSum, dtype, 2, 3}.all(0, kNumSummed);
  golden::Array whole(kNumSummed * sizeof(float)), shorter(whole.size() - 1);
  EXPECT_TRUE(test::fake_sum(sum_of(operands, whole.data(), kNumSummed), dtype, RedOp::kSum).ok());
  EXPECT_FALSE(
      test::fake_sum(sum_of(operands, shorter.data(), kNumSummed), dtype, RedOp::kSum).ok());
  whole.resize(2 * whole.size());
  EXPECT_FALSE(
      test::fake_sum(sum_of(operands, whole.data(), kNumSummed + 1), dtype, RedOp::kSum).ok())
      << "operands end before that";
}
#endif

}  // namespace
}  // namespace braid::coll::device
