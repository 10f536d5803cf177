#include "base/file_name.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace braid {
namespace {

TEST(FileName, HasRankHostAndProcess) {
  EXPECT_EQ(expand_file_name("/t/trace.%r.json", 17), "/t/trace.17.json");
  EXPECT_EQ(expand_file_name("%p/%r%r", 3), std::to_string(::getpid()) + "/33");
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  EXPECT_EQ(expand_file_name("log-%h", 0), std::string("log-") + host);
}

TEST(FileName, LeavesTheRestAsItIs) {
  EXPECT_EQ(expand_file_name("", 1), "");
  EXPECT_EQ(expand_file_name("plain", 1), "plain");
  EXPECT_EQ(expand_file_name("100%", 1), "100%");
  EXPECT_EQ(expand_file_name("%x%%r", 1), "%x%r");
}

TEST(FileName, TellsProcessesApartByRankOrNumber) {
  EXPECT_TRUE(tells_processes_apart("a.%r"));
  EXPECT_TRUE(tells_processes_apart("a.%p"));
  EXPECT_FALSE(tells_processes_apart("a.%h"));
  EXPECT_FALSE(tells_processes_apart("a%%r"));
}

TEST(LaunchedRank, IsTheLaunchers) {
  const auto with = [](const char* name, const char* value) {
    ::setenv(name, value, 1);
    const int rank = launched_rank(40);
    ::unsetenv(name);
    return rank;
  };
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                           "LWS_WORKER_INDEX", "PET_NODE_RANK"})
    ::unsetenv(name);
  EXPECT_EQ(launched_rank(40), 40);
  EXPECT_EQ(with("RANK", "7"), 7);
  EXPECT_EQ(with("SLURM_PROCID", "8"), 8);
  EXPECT_EQ(with("OMPI_COMM_WORLD_RANK", "9"), 9);
  EXPECT_EQ(with("PMI_RANK", "10"), 10);
  EXPECT_EQ(with("PMIX_RANK", "11"), 11);
  EXPECT_EQ(with("LWS_WORKER_INDEX", "12"), 12);
  EXPECT_EQ(with("PET_NODE_RANK", "13"), 13);
  EXPECT_EQ(with("RANK", "-1"), 40);
  EXPECT_EQ(with("RANK", "3x"), 40);
}

}  // namespace
}  // namespace braid
