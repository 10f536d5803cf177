#include "sys/shm/fake.h"

namespace braid::sys {

Result<Segment> FakeSharedMemory::create(std::string_view name, uint64_t bytes) {
  if (++creates_ == fail_create_at_) return create_failed(name, bytes, "fallocate", create_error_);
  return real_shared_memory().create(name, bytes);
}

Result<Segment> FakeSharedMemory::open_peer(int pid, int fd, uint64_t bytes) {
  if (++opens_ == fail_open_at_) return open_failed(pid, fd, open_error_);
  return real_shared_memory().open_peer(pid, fd, bytes);
}

}  // namespace braid::sys
