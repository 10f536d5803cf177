#include "bindings/nccl/core/race_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "sys/host/api.h"

namespace braid::nccl {
namespace {

namespace fs = std::filesystem;

/// A variable for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

TEST(RaceCache, WhatIsWrittenIsRead) {
  const auto read = parse_race(race_to_json("k", {{0x1ff, 0x0a5}, 7}), "k");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->choice.measured, 0x1ffU);
  EXPECT_EQ(read->choice.won, 0x0a5U);
  EXPECT_EQ(read->time_ns, 7);
}

TEST(RaceCache, WhatDoesNotHoldIsRefused) {
  const std::string good = race_to_json("k", {{0x1ff, 1}, 0});
  EXPECT_TRUE(parse_race(good, "").ok());
  EXPECT_FALSE(parse_race(good, "other").ok());
  EXPECT_FALSE(parse_race("", "k").ok());
  EXPECT_FALSE(parse_race(good.substr(0, good.size() / 2), "k").ok());
  EXPECT_FALSE(parse_race(race_to_json("k", {{0x400, 0}, 0}), "k").ok()) << "no such size";
  EXPECT_FALSE(parse_race(race_to_json("k", {{1, 3}, 0}), "k").ok());
  EXPECT_FALSE(parse_race(race_to_json("k", {{4, 3}, 0}), "k").ok()) << "won, but not measured";
}

TEST(RaceCache, TheKeyTellsApartWhatDecides) {
  const Raced raced{BRAID_NCCL_ALL_REDUCE, {0, 6}, 22809, 0, {"a", "b"}};
  const Config plain;
  const std::string key = race_key(raced, plain);
  EXPECT_EQ(race_key(raced, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_BROADCAST, {0, 6}, 22809, 0, {"a", "b"}}, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_ALL_REDUCE, {0, 6}, 22810, 0, {"a", "b"}}, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_ALL_REDUCE, {0, 6}, 22809, 0, {"b", "a"}}, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_ALL_REDUCE, {0, 6}, 22809, 0, {"a"}}, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_ALL_REDUCE, {6, 9}, 22809, 0, {"a", "b"}}, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_ALL_REDUCE, {0, 6}, 22809, 7, {"a", "b"}}, plain), key);
  EXPECT_NE(race_key({BRAID_NCCL_ALL_REDUCE, {0, 6}, 22809, 0, {"a", "b"}, "", true}, plain), key);
  Config other;
  ASSERT_TRUE(other.set("BRAID_GPU_SCRATCH", "64MiB").ok());
  EXPECT_NE(race_key(raced, other), key);
}

// Exact partials are twice or four times the bytes, and a race without them decided for calls with them.
TEST(RaceCache, OverNodesTheKeyTellsExactPartialsApart) {
  Raced raced{BRAID_NCCL_REDUCE_SCATTER, {0, 6}, 22809, 0, {"a", "b"}};
  const Config plain;
  Config exact;
  ASSERT_TRUE(exact.set("BRAID_NCCL_NODES_EXACT", "on").ok());
  EXPECT_EQ(race_key(raced, exact), race_key(raced, plain)) << "on one node there are none";
  const std::string of_one = race_key(raced, plain);
  raced.nodes = "2 x 2";
  const std::string key = race_key(raced, plain);
  EXPECT_NE(key, of_one);
  EXPECT_NE(race_key(raced, exact), key);
  raced.nodes = "4 x 1";
  EXPECT_NE(race_key(raced, plain), key);
}

TEST(RaceCache, NcclsEnvironmentIsPartOfIt) {
  const std::string plain = own_facts("gpu", 13000);
  EXPECT_EQ(own_facts("gpu", 13000), plain);
  EXPECT_NE(own_facts("gpu", 13010), plain);
  {
    const Variable algo("NCCL_ALGO", "Ring");
    EXPECT_NE(own_facts("gpu", 13000), plain);
    const std::string ring = own_facts("gpu", 13000);
    const Variable debug("NCCL_DEBUG", "INFO");
    EXPECT_EQ(own_facts("gpu", 13000), ring) << "that changes no speed";
  }
  EXPECT_EQ(own_facts("gpu", 13000), plain);
  const Variable queues("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  EXPECT_NE(own_facts("gpu", 13000), plain) << "nothing runs beside anything then";
}

TEST(RaceCache, NcclsFilesArePartOfIt) {
  const std::string path =
      (fs::temp_directory_path() / ("braid_nccl_conf_" + std::to_string(sys::process_id())))
          .string();
  const Variable named("NCCL_CONF_FILE", path.c_str());
  const std::string before = own_facts("gpu", 13000);
  std::ofstream(path) << "NCCL_NVLS_ENABLE=0\n";
  const std::string after = own_facts("gpu", 13000);
  fs::remove(path);
  EXPECT_NE(before, after);
}

}  // namespace
}  // namespace braid::nccl
