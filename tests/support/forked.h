// What a forked child sees.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

namespace braid::test {

/// Whether a child that is forked now has something at this address. What it has of private memory
/// is a copy of ours, or ours, while we go on in the copy.
inline bool child_has(const void* at) {
  const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t page = reinterpret_cast<uintptr_t>(at) / page_bytes * page_bytes;
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char is_there = 0;
    ::_exit(::mincore(reinterpret_cast<void*>(page), page_bytes, &is_there) == 0 ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) != 0;
}

}  // namespace braid::test
