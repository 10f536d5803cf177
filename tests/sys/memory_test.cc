// What is left of the memory, of a machine and of control groups that are files of this test.
#include "sys/host/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/units.h"
#include "sys/shm/api.h"

namespace braid::sys {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FreeMemory : public ::testing::Test {
 protected:
  FreeMemory() {
    write("/proc/meminfo", "MemTotal: 99 kB\nMemAvailable:   2048 kB\nSwapFree: 1024 kB\n");
  }
  ~FreeMemory() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void group(const std::string& folder, uint64_t limit, uint64_t use, uint64_t cache) const {
    write("/sys/fs/cgroup" + folder + "/memory.max", std::to_string(limit) + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.current", std::to_string(use) + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.stat",
          "anon 7\ninactive_file " + std::to_string(cache) + "\nactive_file 1000\nshmem 5\n");
  }

  const std::string root_ = ::testing::TempDir() + "braid-memory-" + std::to_string(::getpid());
};

TEST_F(FreeMemory, IsTheMachinesWithItsSwap) { EXPECT_EQ(free_memory_bytes(root_), 3_MiB); }

TEST_F(FreeMemory, IsUnboundedWhereNothingCanBeRead) {
  EXPECT_EQ(free_memory_bytes(root_ + "/nowhere"), ~uint64_t{0});
}

TEST_F(FreeMemory, IsWhatTheTightestGroupAboveLeaves) {
  write("/proc/self/cgroup", "0::/pod/job\n");
  write("/sys/fs/cgroup/pod/job/memory.max", "max\n");
  EXPECT_EQ(free_memory_bytes(root_), 3_MiB);
  group("/pod", 500'000, 450'000, 99'000);
  EXPECT_EQ(free_memory_bytes(root_), 150'000u);
  group("/pod/job", 100'000, 60'000, 0);
  EXPECT_EQ(free_memory_bytes(root_), 41'000u);
  group("/pod/job", 100'000, 900'000, 0);
  EXPECT_EQ(free_memory_bytes(root_), 0u);
}

TEST_F(FreeMemory, IsTheTopGroupsInAContainerThatSeesNoOther) {
  write("/proc/self/cgroup", "0::/kubepods/pod1/ab\n");
  group("", 200'000, 50'000, 0);
  EXPECT_EQ(free_memory_bytes(root_), 151'000u);
}

TEST_F(FreeMemory, ReadsGroupsOfVersion1) {
  write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/x\n3:memory:/docker/a\n0::/\n");
  const std::string folder = "/sys/fs/cgroup/memory/docker/a";
  write(folder + "/memory.limit_in_bytes", "800000\n");
  write(folder + "/memory.usage_in_bytes", "300000\n");
  write(folder + "/memory.stat",
        "cache 1\ninactive_file 9\ntotal_inactive_file 20000\ntotal_active_file 30000\n");
  EXPECT_EQ(free_memory_bytes(root_), 550'000u);
  write(folder + "/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(free_memory_bytes(root_), 3_MiB);
}

TEST(ExpectMemory, RefusesWhatIsNotThereWithBothNumbers) {
  const Status status = expect_memory("a window", 2_GiB << 10);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("a window: 2048 GiB asked, "), HasSubstr("available")));
  EXPECT_TRUE(expect_memory("a ring", 1_MiB).ok());
}

TEST(ExpectMemory, ASegmentThatDoesNotFitIsRefusedUntouched) {
  const uint64_t before = free_memory_bytes();
  const auto made = real_shared_memory().create("test", before + 1_GiB);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kExhausted);
  EXPECT_THAT(made.status().message(), HasSubstr("shared memory test: "));
}

}  // namespace
}  // namespace braid::sys
