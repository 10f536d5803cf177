#include "bindings/nccl/core/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace braid::nccl {
namespace {

// Ranks that end a race at another time would not end it together.
TEST(SettingsOfRanks, WhatDecidesMustBeAlike) {
  const uint64_t plain = fingerprint_of_settings(0);
  EXPECT_EQ(fingerprint_of_settings(0), plain);
  EXPECT_NE(fingerprint_of_settings(1), plain);
  for (const char* name :
       {"BRAID_TUNE", "BRAID_TUNE_TIME", "BRAID_NCCL_MEET", "BRAID_GPU_DIRECT"}) {
    setenv(name, "17", 1);
    EXPECT_NE(fingerprint_of_settings(0), plain) << name;
    setenv(name, "", 1);  // counts as not set
    EXPECT_EQ(fingerprint_of_settings(0), plain) << name;
    unsetenv(name);
  }
  for (const char* name : {"BRAID_CACHE_DIR", "BRAID_LOG", "BRAID_NCCL_REAL"}) {
    setenv(name, "/17", 1);
    EXPECT_EQ(fingerprint_of_settings(0), plain) << name;
    unsetenv(name);
  }
}

}  // namespace
}  // namespace braid::nccl
