#include "sys/verbs/name.h"

#include <gtest/gtest.h>

namespace braid::sys::verbs {
namespace {

EndpointName some_name() {
  EndpointName name;
  for (size_t i = 0; i < name.gid.size(); ++i) name.gid[i] = static_cast<uint8_t>(i * 17 + 1);
  name.gid_type = GidType::kRoceV2;
  name.lid = 0x1234;
  name.mtu = 5;
  name.max_reads = 16;
  name.data = {0xabcdef, 0x123456};
  name.messages = {1, 0xffffff};
  return name;
}

TEST(VerbsName, ComesBackAsItWas) {
  const auto decoded = decode(encode(some_name()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded.value(), some_name());
}

TEST(VerbsName, HasThisLayoutOnEveryMachine) {
  const std::string bytes = encode(some_name());
  ASSERT_EQ(bytes.size(), 44u);
  EXPECT_EQ(bytes.substr(0, 4), "BQP1");
  EXPECT_EQ(bytes[4], 1);
  EXPECT_EQ(bytes.substr(20, 8), std::string("\x02\x05\x10\0\x34\x12\0\0", 8));
  EXPECT_EQ(bytes.substr(28, 8), std::string("\xef\xcd\xab\0\x56\x34\x12\0", 8));
}

TEST(VerbsName, ThatIsCutOrLongerOrOfSomethingElseIsRefused) {
  const std::string bytes = encode(some_name());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(decode(bytes.substr(0, size)).status().code(), Code::kInvalidArgument) << size;
  EXPECT_FALSE(decode(bytes + '\0').ok());
  EXPECT_FALSE(decode("fi_shm://123" + std::string(32, '\0')).ok());
}

// Every value that the driver would be given must be one that a name can have.
TEST(VerbsName, ThatWasAlteredIsRefusedWhereAFieldHasNoSuchValue) {
  const auto alter = [](size_t at, uint8_t value) {
    std::string bytes = encode(some_name());
    bytes[at] = static_cast<char>(value);
    return decode(bytes).status().code();
  };
  EXPECT_EQ(alter(20, 3), Code::kInvalidArgument) << "GID type";
  EXPECT_EQ(alter(21, 0), Code::kInvalidArgument) << "MTU";
  EXPECT_EQ(alter(21, 6), Code::kInvalidArgument) << "MTU";
  EXPECT_EQ(alter(23, 1), Code::kInvalidArgument) << "padding";
  EXPECT_EQ(alter(27, 1), Code::kInvalidArgument) << "padding";
  for (const size_t last : {31, 35, 39, 43})
    EXPECT_EQ(alter(last, 1), Code::kInvalidArgument) << "more than 24 bits";
  EXPECT_EQ(alter(22, 0), Code::kOk) << "a device that answers no reads";
}

}  // namespace
}  // namespace braid::sys::verbs
