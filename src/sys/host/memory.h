// How much memory is left, asked before much of it is touched. A kernel that runs out while pages are
// touched answers with no error: it ends a process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::sys {

/// Bytes that this process can still touch: what the machine has available, swap included, and what
/// every memory cgroup above this process (versions 1 and 2) leaves, page caches counted as free;
/// the least of these. The largest number where none can be read. `root` stands before /proc and
/// /sys, for tests. About 50 us.
uint64_t free_memory_bytes(const std::string& root = "");

/// exhausted, with what is asked and what is available, where `bytes`, of which `touched` are there
/// already, and a little for all others are more than free_memory_bytes(). What is small is not asked
/// about.
Status expect_memory(std::string_view what, uint64_t bytes, uint64_t touched = 0);

}  // namespace braid::sys
