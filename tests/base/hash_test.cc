#include "base/hash.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

// The function's published test values.
TEST(Fnv1a, IsTheOneThatIsPublished) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
}

TEST(Fnv1a, GoesOnWhereItWas) { EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar")); }

TEST(Fnv1a, TakesBytesAsTheyAre) {
  EXPECT_EQ(fnv1a("\xff"), (kFnvStart ^ 0xff) * kFnvPrime);
  EXPECT_NE(fnv1a(std::string_view("\0", 1)), fnv1a(""));
}

}  // namespace
}  // namespace braid
