// The bytes; tests/python/test_observability.py has Python read them.
#include "comm/observe/pickle.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace braid::comm {
namespace {

using Json = nlohmann::ordered_json;

std::string body(const Json& value) {
  const std::string text = pickled(value);
  EXPECT_EQ(text.substr(0, 2), "\x80\x02");
  EXPECT_EQ(text.back(), '.');
  return text.substr(2, text.size() - 3);
}

TEST(Pickle, HasPlainValues) {
  EXPECT_EQ(body(nullptr), "N");
  EXPECT_EQ(body(true), "\x88");
  EXPECT_EQ(body(false), "\x89");
  EXPECT_EQ(body(258), std::string("J\x02\x01\0\0", 5));
  EXPECT_EQ(body(-1), "J\xff\xff\xff\xff");
  EXPECT_EQ(body(int64_t{1} << 40), std::string("\x8a\x08\0\0\0\0\0\x01\0\0", 10));
  EXPECT_EQ(body(-(int64_t{1} << 40)), std::string("\x8a\x08\0\0\0\0\0\xff\xff\xff", 10));
  EXPECT_EQ(body(0.5), std::string("G\x3f\xe0\0\0\0\0\0\0", 9));
  EXPECT_EQ(body("a\xc3\xa4"), std::string("X\x03\0\0\0a\xc3\xa4", 8));
  EXPECT_EQ(body(~uint64_t{0}), std::string("G\x43\xf0\0\0\0\0\0\0", 9));
}

TEST(Pickle, HasListsAndDicts) {
  EXPECT_EQ(body(Json::array()), "](e");
  EXPECT_EQ(body(Json::array({nullptr, true})),
            "](N\x88"
            "e");
  EXPECT_EQ(body(Json{{"k", Json::object()}}), std::string("}(X\x01\0\0\0k}(uu", 12));
}

}  // namespace
}  // namespace braid::comm
