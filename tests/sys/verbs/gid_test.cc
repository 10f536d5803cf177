#include "sys/verbs/gid.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace braid::sys::verbs {
namespace {

GidEntry entry(uint32_t index, const char* address, GidType type) {
  return {gid_of_address(address).value(), index, type};
}

// As a RoCE NIC with one IPv4 and one IPv6 address has it.
std::vector<GidEntry> roce_table() {
  return {entry(0, "fe80::1", GidType::kRoceV1),     entry(1, "fe80::1", GidType::kRoceV2),
          entry(2, "10.0.0.7", GidType::kRoceV1),    entry(3, "10.0.0.7", GidType::kRoceV2),
          entry(4, "2001:db8::7", GidType::kRoceV1), entry(5, "2001:db8::7", GidType::kRoceV2)};
}

uint32_t chosen(std::span<const GidEntry> table, const GidWish& wish = {}) {
  const auto answer = choose_gid(table, wish);
  EXPECT_TRUE(answer.ok()) << answer.status().to_string();
  return answer.ok() ? answer.value().index : ~0u;
}

TEST(VerbsGid, WritesAddressesAsPeopleDo) {
  EXPECT_EQ(gid_text(gid_of_address("10.78.0.1").value()), "10.78.0.1");
  EXPECT_EQ(gid_text(gid_of_address("fe80::5").value()), "fe80::5");
  EXPECT_EQ(gid_of_address("::ffff:10.78.0.1"), gid_of_address("10.78.0.1"));
  EXPECT_TRUE(is_ipv4(gid_of_address("10.78.0.1").value()));
  EXPECT_FALSE(is_ipv4(gid_of_address("fe80::5").value()));
  for (const char* text : {"", "mlx5_0", "10.78.0", "10.78.0.1:5", "fe80::5%eth0"})
    EXPECT_FALSE(gid_of_address(text).has_value()) << text;
}

TEST(VerbsGid, PrefersRoceV2OverIPv4InEveryOrderOfTheTable) {
  std::vector<GidEntry> table = roce_table();
  for (size_t turn = 0; turn < table.size(); ++turn) {
    EXPECT_EQ(chosen(table), 3u);
    std::ranges::reverse(table);
    EXPECT_EQ(chosen(table), 3u);
    std::ranges::reverse(table);
    std::ranges::rotate(table, table.begin() + 1);
  }
}

TEST(VerbsGid, TakesTheNextBestWhereThatIsMissing) {
  std::vector<GidEntry> table = roce_table();
  const auto without = [&](uint32_t index) {
    std::erase_if(table, [&](const GidEntry& e) { return e.index == index; });
    return table.empty() ? ~0u : chosen(table);
  };
  EXPECT_EQ(without(3), 5u) << "routable IPv6";
  EXPECT_EQ(without(5), 1u) << "link-local, but v2";
  EXPECT_EQ(without(1), 2u) << "v1 over IPv4";
  EXPECT_EQ(without(2), 4u);
  EXPECT_EQ(without(4), 0u);
}

TEST(VerbsGid, OfInfinibandIsTheFirst) {
  const std::vector<GidEntry> table = {entry(0, "fe80::2:c903:1:2", GidType::kInfiniband)};
  EXPECT_EQ(chosen(table), 0u);
}

TEST(VerbsGid, IsTheOneThatIsWishedFor) {
  const std::vector<GidEntry> table = roce_table();
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(chosen(table, {.index = i}), i);
  EXPECT_EQ(chosen(table, {.gid = gid_of_address("2001:db8::7")}), 5u) << "and v2 of those";
  EXPECT_EQ(chosen(table, {.gid = gid_of_address("10.0.0.7")}), 3u);
}

TEST(VerbsGid, ThatIsMissingIsNamedWithWhatThereIs) {
  const std::vector<GidEntry> table = roce_table();
  const Status by_index = choose_gid(table, {.index = 9}).status();
  EXPECT_EQ(by_index.code(), Code::kUnavailable);
  EXPECT_NE(by_index.message().find("GID index 9"), std::string::npos);
  EXPECT_NE(by_index.message().find("3 10.0.0.7 (RoCE v2)"), std::string::npos);
  const Status by_address = choose_gid(table, {.gid = gid_of_address("10.0.0.8")}).status();
  EXPECT_NE(by_address.message().find("10.0.0.8"), std::string::npos);
  EXPECT_EQ(choose_gid({}, {}).status().code(), Code::kUnavailable);
  const std::vector<GidEntry> empty = {{.index = 0, .type = GidType::kRoceV2}};
  EXPECT_FALSE(choose_gid(empty, {}).ok()) << "a GID of zeroes is nobody's";
}

}  // namespace
}  // namespace braid::sys::verbs
