#include "sys/host/api.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <set>
#include <thread>

namespace braid::sys {
namespace {

TEST(Host, IdIsStableAndShort) {
  const std::string id = host_id("");
  EXPECT_EQ(id.size(), 16u);
  for (const char c : id) EXPECT_TRUE(std::isxdigit(static_cast<unsigned char>(c)));
  EXPECT_EQ(id, host_id(""));
}

TEST(Host, IdMayBeOverridden) { EXPECT_EQ(host_id("node-a"), "node-a"); }

TEST(Host, CoresAreThoseWeMayUse) {
  const int cores = usable_cores();
  EXPECT_GE(cores, 1);
  std::thread([&] {  // the mask is the thread's: the rest of the program keeps its own
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(::sched_getcpu()), &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) return;
    EXPECT_EQ(usable_cores(), 1);
  })
      .join();
  EXPECT_EQ(usable_cores(), cores);
}

TEST(Host, RandomBytesDiffer) {
  std::set<std::array<std::byte, 16>> seen;
  for (int i = 0; i < 100; ++i) {
    std::array<std::byte, 16> bytes{};
    ASSERT_TRUE(random_bytes(bytes).ok());
    seen.insert(bytes);
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_TRUE(random_bytes({}).ok());
}

TEST(Host, RandomWordsAreHexAndDiffer) {
  const std::string word = random_hex(16).value();
  EXPECT_EQ(word.size(), 32u);
  EXPECT_EQ(word.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(word, random_hex(16).value());
  EXPECT_EQ(random_hex(0).value(), "");
}

TEST(Host, KnowsItsNames) {
  EXPECT_EQ(process_id(), ::getpid());
  EXPECT_FALSE(host_name().empty());
}

TEST(Host, HomeComesFromTheEnvironmentOrThePasswordDatabase) {
  const char* before = std::getenv("HOME");
  const std::string home = before != nullptr ? before : "";
  ::setenv("HOME", "/somewhere", 1);
  EXPECT_EQ(home_directory(), "/somewhere");
  ::setenv("HOME", "not absolute", 1);
  EXPECT_NE(home_directory(), "not absolute");
  if (before != nullptr) ::setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace braid::sys
