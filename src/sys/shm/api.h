// Shared memory between ranks of one host: anonymous segments (memfd) that a peer opens through
// /proc/<pid>/fd/<fd>. A segment has no name in any file system: when the last process that maps it
// is gone, so is the memory, however that process died.
//
// Memory is reserved when a segment is created. Without that, a machine that runs full would answer
// a store into the mapping with SIGBUS, which no Status can express.
//
// Threads: a SharedMemory may be used by any number of threads; a Segment belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "sys/fd.h"

namespace braid::sys {

/// A mapping, readable and writable, page-aligned, unmapped by its owner. New segments are all
/// zero.
class Segment {
 public:
  Segment() = default;
  Segment(Fd fd, std::byte* data, uint64_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  /// What a peer needs besides our pid to open the segment; -1 when this is itself a peer's
  /// segment.
  int fd() const { return fd_.get(); }
  bool is_mapped() const { return data_ != nullptr; }

 private:
  void unmap();
  Fd fd_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

class SharedMemory {
 public:
  virtual ~SharedMemory() = default;

  /// A new zeroed segment whose memory is already there. `name` shows in /proc/<pid>/maps and in
  /// messages only. invalid_argument (0 bytes), exhausted (memory, descriptors), driver (anything
  /// else).
  virtual Result<Segment> create(std::string_view name, uint64_t bytes) = 0;

  /// Maps segment `fd` of process `pid` (this process included). Both must run as one user in one
  /// pid namespace. unavailable (no such process or descriptor, or no permission), invalid_argument
  /// (segment is smaller than `bytes`, or its size is not sealed).
  virtual Result<Segment> open_peer(int pid, int fd, uint64_t bytes) = 0;
};

/// The kernel's. Lives for ever.
SharedMemory& real_shared_memory();

/// How a failed create() or open_peer() reads; the fake answers through these too.
Status create_failed(std::string_view name, uint64_t bytes, const char* call, int error);
Status open_failed(int pid, int fd, int error);

}  // namespace braid::sys
