#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "base/units.h"
#include "sys/error_text.h"
#include "sys/shm/api.h"

namespace braid::sys {

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Segment::~Segment() { unmap(); }

void Segment::unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

Status create_failed(std::string_view name, uint64_t bytes, const char* call, int error) {
  const bool is_full = error == ENOSPC || error == ENOMEM || error == EMFILE || error == ENFILE;
  return {is_full ? Code::kExhausted : Code::kDriver,
          fmt::format("shared memory {}: {} of {}: {}", name, call, format_bytes(bytes),
                      error_text(error))};
}

Status open_failed(int pid, int fd, int error) {
  const char* hint = "";
  if (error == EACCES || error == EPERM) hint = "; both ranks must run as the same user";
  if (error == ENOENT) hint = "; the process is gone or lives in another pid namespace";
  const bool is_full = error == ENOMEM || error == EMFILE || error == ENFILE;
  return {is_full ? Code::kExhausted : Code::kUnavailable,
          fmt::format("shared memory of process {}: descriptor {}: {}{}", pid, fd,
                      error_text(error), hint)};
}

namespace {

constexpr uint64_t kHugePageBytes = 2_MiB;

Result<std::byte*> map(int fd, uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return exhausted("mmap of {}: {}", format_bytes(bytes), error_text(errno));
  return static_cast<std::byte*>(at);
}

// Huge pages are only given to pages that are first touched through an advised mapping, so this
// comes before fallocate. Both calls are advice: a kernel that knows neither (madvise before 5.14)
// loses speed, nothing else.
void advise_huge(std::byte* data, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (bytes >= kHugePageBytes && ::madvise(data, bytes, MADV_HUGEPAGE) == 0)
    (void)::madvise(data, bytes, MADV_POPULATE_WRITE);
#else
  (void)::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

class RealSharedMemory : public SharedMemory {
 public:
  Result<Segment> create(std::string_view name, uint64_t bytes) override {
    if (bytes == 0) return invalid_argument("shared memory {}: asked for 0 bytes", name);
    Fd fd(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.is_open()) return create_failed(name, bytes, "memfd_create", errno);
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
      return create_failed(name, bytes, "ftruncate", errno);
    auto data = map(fd.get(), bytes);
    if (!data.ok()) return data.status().with_context(fmt::format("shared memory {}", name));
    Segment segment(std::move(fd), *data, bytes);
    advise_huge(segment.data(), bytes);
    BRAID_RETURN_IF_ERROR(reserve(name, segment));
    return segment;
  }

  Result<Segment> open_peer(int pid, int fd, uint64_t bytes) override {
    const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
    Fd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!opened.is_open()) return open_failed(pid, fd, errno);
    // Whoever could shrink it could end us: to touch what is not there any more is SIGBUS.
    if (const int seals = ::fcntl(opened.get(), F_GET_SEALS); seals < 0 || !(seals & F_SEAL_SHRINK))
      return invalid_argument("shared memory of process {}: descriptor {}: its size is not sealed",
                              pid, fd);
    struct stat found{};
    if (::fstat(opened.get(), &found) != 0) return open_failed(pid, fd, errno);
    if (!S_ISREG(found.st_mode) || bytes == 0 || static_cast<uint64_t>(found.st_size) < bytes)
      return invalid_argument(
          "shared memory of process {}: descriptor {}: asked for {} bytes, found {}", pid, fd,
          bytes, found.st_size);
    auto data = map(opened.get(), bytes);
    if (!data.ok())
      return data.status().with_context(fmt::format("shared memory of process {}", pid));
    return Segment(Fd(), *data,
                   bytes);  // the mapping keeps the memory; a descriptor is worth giving back
  }

 private:
  // Reserves every page, then seals the size: nobody, not even a peer that writes into the segment,
  // can shrink it under a running copy.
  static Status reserve(std::string_view name, const Segment& segment) {
    int rc = 0;
    do {
      rc = ::fallocate(segment.fd(), 0, 0, static_cast<off_t>(segment.bytes()));
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) return create_failed(name, segment.bytes(), "fallocate", errno);
    if (::fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      return create_failed(name, segment.bytes(), "fcntl(F_ADD_SEALS)", errno);
    return {};
  }
};

}  // namespace

SharedMemory& real_shared_memory() {
  static RealSharedMemory real;
  return real;
}

}  // namespace braid::sys
