// Shared memory that fails on demand, and is the real one otherwise.
#pragma once

#include <atomic>
#include <string_view>

#include "sys/shm/api.h"

namespace braid::sys {

/// Thread-safe as the real one; set the failures before the ranks start.
class FakeSharedMemory : public SharedMemory {
 public:
  /// The n-th create (from 1) fails with this errno: ENOSPC, ENOMEM, EMFILE...
  void fail_create_at(int n, int error) { fail_create_at_ = n, create_error_ = error; }
  /// The n-th open_peer (from 1) fails with this errno: EACCES, ENOENT...
  void fail_open_at(int n, int error) { fail_open_at_ = n, open_error_ = error; }
  int creates() const { return creates_; }
  int opens() const { return opens_; }

  Result<Segment> create(std::string_view name, uint64_t bytes) override;
  Result<Segment> open_peer(int pid, int fd, uint64_t bytes) override;

 private:
  int fail_create_at_ = 0, create_error_ = 0;
  int fail_open_at_ = 0, open_error_ = 0;
  std::atomic<int> creates_{0}, opens_{0};
};

}  // namespace braid::sys
