#include "group/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "support/ranks.h"

namespace braid::group {
namespace {

using ::testing::HasSubstr;

class Token : public ::testing::Test {
 protected:
  Token() {
    char name[] = "/tmp/braid_token_test.XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~Token() override { std::filesystem::remove_all(directory_); }
  std::string path() const { return directory_ + "/braid/token"; }
  void put(const std::string& text, mode_t mode) {
    std::filesystem::create_directories(directory_ + "/braid");
    std::ofstream(path()) << text;
    ::chmod(path().c_str(), mode);
  }
  std::string directory_;
};

TEST_F(Token, IsMadeOnceAndOnlyItsOwnerMayReadIt) {
  auto first = user_secret(directory_), second = user_secret(directory_);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first->size(), 64u);
  EXPECT_EQ(*first, *second);
  struct stat found{};
  ASSERT_EQ(::stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(Token, ProcessesThatRaceAgreeAndLeaveNoDrafts) {
  std::vector<std::string> secrets(16);
  test::run_threads(
      16, [&](int rank) { secrets[static_cast<size_t>(rank)] = user_secret(directory_).value(); });
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1u);
  const auto files = std::filesystem::directory_iterator(directory_ + "/braid");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(Token, AFileThatOthersMayReadIsRefused) {
  put(std::string(64, 'a'), 0644);
  const Status status = user_secret(directory_).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("found user"));
  EXPECT_THAT(status.message(), HasSubstr("mode 0644"));
}

TEST_F(Token, AShortFileIsRefused) {
  put("short", 0600);
  EXPECT_THAT(user_secret(directory_).status().message(), HasSubstr("found 5 bytes, expected 64"));
}

TEST_F(Token, ALinkIsRefused) {
  put(std::string(64, 'a'), 0600);
  std::filesystem::rename(path(), directory_ + "/elsewhere");
  std::filesystem::create_symlink(directory_ + "/elsewhere", path());
  EXPECT_EQ(user_secret(directory_).status().code(), Code::kUnavailable);
}

TEST_F(Token, AnUnusableDirectorySaysWhatToSet) {
  put("x", 0600);
  const Status status = user_secret(path()).status();  // a file is no directory
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("BRAID_JOB_TOKEN"));
}

TEST_F(Token, GivenOnesAreTakenAsTheyAre) {
  EXPECT_EQ(choose_token("mine", false, "10.0.0.1", 1).value(), "mine");
  EXPECT_EQ(choose_token("mine", true, "127.0.0.1", 1).value(), "mine");
}

TEST_F(Token, OffLoopbackOneMustBeGiven) {
  const Status status = choose_token("", false, "10.0.0.1", 1).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("10.0.0.1"));
  EXPECT_THAT(status.message(), HasSubstr("set BRAID_JOB_TOKEN"));
}

TEST_F(Token, OnLoopbackTheUsersSecretIsBoundToThePort) {
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  const auto one = choose_token("", true, "127.0.0.1", 1000),
             same = choose_token("", true, "127.0.0.1", 1000),
             other = choose_token("", true, "127.0.0.1", 1001);
  ::unsetenv("XDG_RUNTIME_DIR");
  ASSERT_TRUE(one.ok() && same.ok() && other.ok());
  EXPECT_EQ(one.value(), same.value());
  EXPECT_NE(one.value(), other.value());
  EXPECT_TRUE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace braid::group
