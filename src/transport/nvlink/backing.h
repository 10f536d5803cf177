// Memory of cuMemCreate: bytes and addresses are made apart. An allocation has bytes and a handle;
// it is mapped at addresses, unmapped, and mapped elsewhere. A span of addresses may lie over many
// allocations, one behind the other, as torch's expandable segments do.
//
// How a mapping is known again: the driver answers for an address with the very handle that was
// mapped there. We hold a reference to every handle that we have given away, so its number cannot
// come to mean another allocation meanwhile. No address and no count of bytes would tell.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "sys/cuda/api.h"
#include "sys/cuda/owned.h"

namespace braid::nvlink {

/// What is mapped under a span of our own addresses, with a reference to each allocation: its bytes
/// live until this is gone.
class Backing {
 public:
  struct Part {
    sys::AddressRange range;  // of the mapping, which begins with the allocation's first byte
    sys::OwnedAllocation allocation;
  };

  /// invalid_argument where nothing, or not all, is mapped; unsupported for allocations that cannot
  /// be exported as a file descriptor.
  static Result<Backing> find(sys::Cuda& cuda, sys::DevicePtr memory, uint64_t bytes);
  Backing() = default;

  bool empty() const { return parts_.empty(); }
  const std::vector<Part>& parts() const { return parts_; }
  /// Whether every part under these bytes is still mapped where it was.
  bool is_mapped_at(sys::DevicePtr memory, uint64_t bytes) const;

 private:
  bool is_where_it_was(const Part& part) const;
  sys::Cuda* cuda_ = nullptr;
  std::vector<Part> parts_;
};

/// A peer's allocations at addresses of ours, one behind the other. The bytes live while they are
/// mapped.
class MappedParts {
 public:
  /// Addresses for parts of `bytes` together.
  static Result<MappedParts> reserve(sys::Cuda& cuda, uint64_t bytes);
  MappedParts() = default;
  MappedParts(MappedParts&& other) noexcept;
  MappedParts& operator=(MappedParts&& other) noexcept;
  ~MappedParts() { reset(); }

  /// Maps the next part, for the GPU `device` to use. The caller may release the allocation then.
  Status add(sys::Allocation allocation, uint64_t bytes, int device);
  sys::DevicePtr base() const { return base_; }
  void reset();

 private:
  sys::Cuda* cuda_ = nullptr;
  sys::DevicePtr base_ = 0;
  uint64_t bytes_ = 0;
  std::vector<sys::AddressRange> mapped_;
};

}  // namespace braid::nvlink
