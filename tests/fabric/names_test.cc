#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fabric/types.h"

namespace braid::fabric {
namespace {

template <typename Enum>
void expect_distinct(Enum last, const char* (*name_of)(Enum) noexcept) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) names.insert(name_of(static_cast<Enum>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(last) + 1);
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_STREQ(name_of(static_cast<Enum>(200)), "unknown");
}

TEST(Names, AreDistinctAndEndAtUnknown) {
  expect_distinct(LinkKind::kPcie, link_kind_name);
  expect_distinct(Source::kPaced, source_name);
  expect_distinct(PathKind::kSys, path_kind_name);
}

}  // namespace
}  // namespace braid::fabric
