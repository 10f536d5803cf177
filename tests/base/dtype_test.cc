#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>

namespace braid {
namespace {

TEST(Dtype, NumbersAreNcclsWhereNcclHasThem) {
  EXPECT_EQ(static_cast<int>(Dtype::kInt8), 0);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat16), 6);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat32), 7);
  EXPECT_EQ(static_cast<int>(Dtype::kBfloat16), 9);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat8E5m2), 11);
  EXPECT_EQ(static_cast<int>(RedOp::kMin), 3);
}

TEST(Dtype, EveryOneHasASizeAndANameThatReadsBack) {
  std::set<std::string> names;
  for (const Dtype dtype : kAllDtypes) {
    const std::string name = dtype_name(dtype);
    SCOPED_TRACE(name);
    EXPECT_TRUE(is_valid(dtype));
    EXPECT_TRUE(names.insert(name).second);
    EXPECT_EQ(parse_dtype(name).value(), dtype);
    const size_t bytes = dtype_bytes(dtype);
    EXPECT_TRUE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  }
  EXPECT_EQ(names.size(), 14u);
}

TEST(Dtype, SizesMatchTheNames) {
  EXPECT_EQ(dtype_bytes(Dtype::kFloat8E4m3), 1u);
  EXPECT_EQ(dtype_bytes(Dtype::kBfloat16), 2u);
  EXPECT_EQ(dtype_bytes(Dtype::kUint32), 4u);
  EXPECT_EQ(dtype_bytes(Dtype::kFloat64), 8u);
}

TEST(Dtype, OutsideTheEnumIsUnknownNotUndefined) {
  const auto wrong = static_cast<Dtype>(12);
  EXPECT_FALSE(is_valid(wrong));
  EXPECT_EQ(dtype_bytes(wrong), 0u);
  EXPECT_STREQ(dtype_name(wrong), "unknown");
  EXPECT_EQ(parse_dtype("float12").status().code(), Code::kInvalidArgument);
}

TEST(RedOp, NamesReadBack) {
  for (const RedOp op : kAllRedOps) EXPECT_EQ(parse_redop(redop_name(op)).value(), op);
  EXPECT_EQ(parse_redop("mean").status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(is_valid(static_cast<RedOp>(5)));
  EXPECT_STREQ(redop_name(static_cast<RedOp>(5)), "unknown");
}

}  // namespace
}  // namespace braid
