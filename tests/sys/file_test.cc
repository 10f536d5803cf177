#include "sys/host/file.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace braid::sys
