#include "sys/host/pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "sys/host/api.h"
#include "sys/host/memory.h"

namespace braid::sys {

Result<Pages> Pages::map(std::string_view what, size_t bytes) {
  // Registration touches them all.
  BRAID_RETURN_IF_ERROR(expect_memory(what, bytes));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc keeps the text per thread
    return exhausted("{}: mmap of {} bytes: {}", what, bytes, std::strerror(errno));
  (void)madvise(data, bytes, MADV_DONTFORK);
  return Pages(static_cast<std::byte*>(data), bytes);
}

Pages::Pages(std::byte* data, size_t bytes) : data_(data), bytes_(bytes), process_(process_id()) {}

Pages::~Pages() {
  if (data_ != nullptr && process_ == process_id()) munmap(data_, bytes_);
}

}  // namespace braid::sys
