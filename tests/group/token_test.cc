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

// A pipe would be waited for, for ever.
TEST_F(Token, APipeIsRefusedAtOnce) {
  put("x", 0600);
  std::filesystem::remove(path());
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(user_secret(directory_).status().message(), HasSubstr("must be a file of user"));
}

TEST_F(Token, AFolderThatOthersWriteToIsRefused) {
  put(std::string(64, 'a'), 0600);
  ::chmod((directory_ + "/braid").c_str(), 0777);
  EXPECT_THAT(user_secret(directory_).status().message(), HasSubstr("mode 0777"));
}

TEST_F(Token, AFolderOfSomebodyElseIsRefused) {
  put(std::string(64, 'a'), 0600);
  if (::chown((directory_ + "/braid").c_str(), 65534, 65534) != 0)
    GTEST_SKIP() << "only root gives folders away";
  EXPECT_THAT(user_secret(directory_).status().message(), HasSubstr("found user 65534"));
}

TEST_F(Token, AFolderThatIsALinkIsRefused) {
  std::filesystem::create_directories(directory_ + "/elsewhere");
  std::filesystem::create_symlink(directory_ + "/elsewhere", directory_ + "/braid");
  EXPECT_EQ(user_secret(directory_).status().code(), Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/elsewhere"));
}

TEST_F(Token, ItsFolderIsTheUsersAloneWhateverTheUmask) {
  const mode_t before = ::umask(0);
  const bool is_made = user_secret(directory_).ok();
  ::umask(before);
  ASSERT_TRUE(is_made);
  struct stat found{};
  ASSERT_EQ(::stat((directory_ + "/braid").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST_F(Token, ARuntimeFolderOfSomebodyElseIsPassedOver) {
  if (::chown(directory_.c_str(), 65534, 65534) != 0)
    GTEST_SKIP() << "only root gives folders away";
  char home[] = "/tmp/braid_token_home.XXXXXX";
  ASSERT_NE(::mkdtemp(home), nullptr);
  const std::string own_home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  ::setenv("HOME", home, 1);
  const auto token = choose_token("", true, "127.0.0.1", 1000);
  ::unsetenv("XDG_RUNTIME_DIR");
  ::setenv("HOME", own_home.c_str(), 1);
  EXPECT_TRUE(token.ok());
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_TRUE(std::filesystem::exists(std::string(home) + "/.cache/braid/token"));
  std::filesystem::remove_all(home);
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
  EXPECT_THAT(status.message(), HasSubstr("export BRAID_JOB_TOKEN="));
}

// The line is the one for the launcher at hand.
TEST_F(Token, OffLoopbackTheLineToWriteIsNamed) {
  const auto line_with = [](const char* variable) {
    ::setenv(variable, "1", 1);
    const std::string line = choose_token("", false, "10.0.0.1", 1).status().message();
    ::unsetenv(variable);
    return line;
  };
  EXPECT_THAT(line_with("SLURM_JOB_ID"), HasSubstr("before srun"));
  EXPECT_THAT(line_with("KUBERNETES_SERVICE_HOST"), HasSubstr("kubectl create secret"));
  EXPECT_THAT(line_with("BRAID_TEST_NOTHING"), HasSubstr("torchrun"));
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
