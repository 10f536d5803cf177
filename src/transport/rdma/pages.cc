#include "transport/rdma/pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "sys/host/memory.h"

namespace braid::transport::rdma {

Result<Pages> Pages::map(size_t bytes) {
  // Registration touches them all.
  BRAID_RETURN_IF_ERROR(sys::expect_memory("pages for a ring", bytes));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc keeps the text per thread
    return exhausted("mmap of {} bytes for a ring: {}", bytes, std::strerror(errno));
  madvise(data, bytes,
          MADV_DONTFORK);  // a forked child must not take copies of pages that a NIC writes
  return Pages(static_cast<std::byte*>(data), bytes);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace braid::transport::rdma
