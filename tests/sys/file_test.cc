#include "sys/host/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace braid::sys {
namespace {

namespace fs = std::filesystem;

class WholeFile : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  const fs::path folder_ = fs::path(testing::TempDir()) / "braid_whole_file";
};

TEST_F(WholeFile, MakesItsFolderAndLeavesNothingBeside) {
  const fs::path path = folder_ / "a" / "b.json";
  ASSERT_TRUE(write_file(path.string(), std::string("one\0two", 7)).ok());
  EXPECT_EQ(text_of(path), std::string("one\0two", 7));
  ASSERT_TRUE(write_file(path.string(), "shorter").ok());
  EXPECT_EQ(text_of(path), "shorter");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "a"), fs::directory_iterator()), 1);
}

TEST_F(WholeFile, SaysWhatCannotBeWritten) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  const Status status = write_file((folder_ / "file" / "below").string(), "y");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find((folder_ / "file" / "below").string()), std::string::npos);
}

// What others may have planted in a folder that they can write to.
TEST_F(WholeFile, FollowsAndAwaitsNothingThatLiesThere) {
  fs::create_directories(folder_);
  const fs::path path = folder_ / "tuning.json", victim = folder_ / "victim";
  std::ofstream(victim) << "precious";
  // The name beside it that could once be guessed.
  const fs::path guessed = folder_ / fmt::format("tuning.json.{}", ::getpid());
  for (const fs::path& planted : {path, guessed}) {
    fs::remove(planted);
    fs::create_symlink(victim, planted);
    ASSERT_TRUE(write_file(path.string(), "mine").ok());
    EXPECT_EQ(text_of(victim), "precious");
    EXPECT_FALSE(fs::is_symlink(path));
    fs::remove(planted);
    ASSERT_EQ(::mkfifo(planted.c_str(), 0666), 0);
    ASSERT_TRUE(write_file(path.string(), "mine").ok());  // a pipe nobody reads
    EXPECT_EQ(text_of(path), "mine");
  }
}

TEST_F(WholeFile, LeavesNothingWhenTheDiskIsFull) {
  fs::create_directories(folder_);
  const pid_t child = ::fork();  // its limit on the size of files is its own
  if (child == 0) {
    const rlimit none{4, 4};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &none);
    const Status status = write_file((folder_ / "file").string(), "longer than that");
    ::_exit(status.code() == Code::kUnavailable ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(WholeFile, ReadsRegularFilesAndWaitsForNoOther) {
  fs::create_directories(folder_);
  const std::string file = (folder_ / "file").string(), pipe = (folder_ / "pipe").string();
  std::ofstream(file) << "text";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  EXPECT_EQ(read_file(file, 4).value(), "text");
  EXPECT_EQ(read_file(file, 3).status().code(), Code::kUnavailable);
  EXPECT_EQ(read_file(pipe, 100).status().message(), pipe + ": is no regular file");
  EXPECT_EQ(read_file(folder_.string(), 100).status().code(), Code::kUnavailable);
  EXPECT_EQ(read_file(file + "s", 100).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace braid::sys
