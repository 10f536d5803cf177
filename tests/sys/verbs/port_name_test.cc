#include "sys/verbs/port_name.h"

#include <gtest/gtest.h>

namespace braid::sys::verbs {
namespace {

TEST(VerbsPortName, IsADeviceWithPortAndGidIndexOrAnAddress) {
  const auto parse = [](const char* text) { return parse_port_name(text).value(); };
  EXPECT_TRUE(parse("").means("rxe0", 1)) << "any";
  EXPECT_TRUE(parse("mlx5_0").means("mlx5_0", 2));
  EXPECT_FALSE(parse("mlx5_0").means("mlx5_01", 1));
  EXPECT_TRUE(parse("mlx5_0:2").means("mlx5_0", 2));
  EXPECT_FALSE(parse("mlx5_0:2").means("mlx5_0", 1));
  EXPECT_FALSE(parse("mlx5_0:2").gid.index.has_value());
  EXPECT_EQ(parse("mlx5_0:2:11").gid.index, 11u);
  EXPECT_EQ(parse("10.0.0.7").gid.gid, gid_of_address("10.0.0.7"));
  EXPECT_EQ(parse("fe80::1").gid.gid, gid_of_address("fe80::1"));
  EXPECT_TRUE(parse("10.0.0.7").means("mlx5_3", 1)) << "whichever has it";
}

TEST(VerbsPortName, ThatIsNoneIsRefused) {
  for (const char* text : {":", ":1", "a:", "a:0", "a:x", "a:1:", "a:1:x", "a:1:2:3", "a:256",
                           "a:-1", "a:1:-1", "a:1:99999999999", "a: 1"})
    EXPECT_EQ(parse_port_name(text).status().code(), Code::kInvalidArgument) << text;
}

TEST(VerbsPortName, IsParsedAsItWasWritten) {
  EXPECT_EQ(port_name("mlx5_0", 1), "mlx5_0");
  EXPECT_EQ(port_name("mlx5_0", 2), "mlx5_0:2");
  EXPECT_TRUE(parse_port_name(port_name("mlx5_0", 2)).value().means("mlx5_0", 2));
}

}  // namespace
}  // namespace braid::sys::verbs
