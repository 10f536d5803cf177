#include "engine/descriptor.h"

#include <gtest/gtest.h>

#include "engines.h"

namespace braid::engine::test {
namespace {

RegionDescriptor sample() {
  RegionDescriptor out;
  out.owner.name = "prefill 3";
  out.owner.incarnation = {'1', '2', '3'};
  out.owner.host = "host";
  out.owner.process = 4711;
  out.owner.endpoints = {"10.0.0.1:4242", "[::1]:4242"};
  out.owner.num_nics = 2;
  out.id = 77;
  out.base = 0x7f0012345000;
  out.bytes = uint64_t{5} << 32;
  out.is_read_only = true;
  out.keys = {{1, 2}, {UINT64_MAX, 4}};
  return out;
}

TEST(Descriptor, ComesBackWhole) {
  const Secret secret("token");
  auto read = decode_region(encode(sample(), secret), secret);
  ASSERT_TRUE(is_ok(read));
  const RegionDescriptor& r = **read;
  EXPECT_EQ(r.owner.name, "prefill 3");
  EXPECT_EQ(r.owner.incarnation, sample().owner.incarnation);
  EXPECT_EQ(r.owner.endpoints, sample().owner.endpoints);
  EXPECT_EQ(r.owner.process, 4711);
  EXPECT_EQ(r.id, 77);
  EXPECT_EQ(r.base, 0x7f0012345000);
  EXPECT_EQ(r.bytes, uint64_t{5} << 32);
  EXPECT_TRUE(r.is_read_only);
  ASSERT_EQ(r.keys.size(), 2);
  EXPECT_EQ(r.keys[1].address, UINT64_MAX);
  EXPECT_EQ(r.keys[1].key, 4);
  const auto address = decode_address(encode(sample().owner, secret), secret);
  ASSERT_TRUE(is_ok(address));
  EXPECT_EQ(address->num_nics, 2);
}

// A peer of a library of before, or of another one: its name goes into messages, and to Python.
TEST(Descriptor, NamesThatAreNoUtf8AreMadeSo) {
  const Secret secret("token");
  RegionDescriptor sent = sample();
  sent.owner.name =
      "f\xfc"
      "r";
  sent.owner.host = "h\xff";
  auto read = decode_region(encode(sent, secret), secret);
  ASSERT_TRUE(is_ok(read));
  EXPECT_EQ((*read)->owner.name, "f?r");
  EXPECT_EQ((*read)->owner.host, "h?");
}

TEST(Descriptor, EveryCutAndEveryFlippedBitIsRefused) {
  const Secret secret("token");
  const std::string good = encode(sample(), secret);
  for (size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_EQ(decode_region(good.substr(0, bytes), secret).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(decode_region(good + "x", secret).status().code(), Code::kInvalidArgument);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string altered = good;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(decode_region(altered, secret).status().code(), Code::kInvalidArgument) << bit;
  }
}

TEST(Descriptor, SaysWhatIsWrong) {
  const Secret ours("token"), theirs("another");
  const std::string bytes = encode(sample(), theirs);
  EXPECT_TRUE(failed(decode_region(bytes, ours).status(), Code::kInvalidArgument, "another job"));
  EXPECT_TRUE(failed(decode_region(encode(sample().owner, ours), ours).status(),
                     Code::kInvalidArgument, "these bytes are none"));
  EXPECT_TRUE(failed(decode_region("", ours).status(), Code::kInvalidArgument, "too short"));
  std::string version = encode(sample(), ours);
  version[4] = 9;
  EXPECT_TRUE(failed(decode_region(version, ours).status(), Code::kInvalidArgument, "version 9"));
  version = encode(sample(), ours);
  version[version.size() - 40] ^= 1;
  EXPECT_TRUE(failed(decode_region(version, ours).status(), Code::kInvalidArgument, "altered"));
}

}  // namespace
}  // namespace braid::engine::test
