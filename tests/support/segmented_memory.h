// Device memory as torch's expandable segments make it: one run of addresses over several
// allocations, which may be taken away and others put in their place.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "sys/cuda/api.h"

namespace braid::test {

class SegmentedMemory {
 public:
  static constexpr uint64_t kSegmentBytes = 2 << 20;

  /// `lengths` in units of kSegmentBytes.
  SegmentedMemory(sys::Cuda& cuda, int device, std::vector<uint64_t> lengths)
      : cuda_(cuda), device_(device), lengths_(std::move(lengths)) {
    base_ = cuda_.reserve_addresses(bytes(), 0).value();
    for (size_t i = 0; i < lengths_.size(); ++i) map(i);
  }
  ~SegmentedMemory() {
    for (size_t i = 0; i < lengths_.size(); ++i) {
      if (begin_of(i) == unmapped_) continue;
      EXPECT_TRUE(cuda_.unmap(begin_of(i), bytes_of(i)).ok());
    }
    EXPECT_TRUE(cuda_.free_addresses(base_, bytes()).ok());
  }
  SegmentedMemory(const SegmentedMemory&) = delete;
  SegmentedMemory& operator=(const SegmentedMemory&) = delete;

  sys::DevicePtr get() const { return base_; }
  std::byte* data() const { return sys::pointer_to<std::byte>(base_); }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < lengths_.size(); ++i) sum += bytes_of(i);
    return sum;
  }
  uint64_t bytes_of(size_t segment) const { return lengths_[segment] * kSegmentBytes; }
  sys::DevicePtr begin_of(size_t segment) const {
    sys::DevicePtr at = base_;
    for (size_t i = 0; i < segment; ++i) at += bytes_of(i);
    return at;
  }
  void unmap(size_t segment) {
    EXPECT_TRUE(cuda_.unmap(begin_of(segment), bytes_of(segment)).ok());
    unmapped_ = begin_of(segment);
  }
  /// Other bytes at the same addresses.
  void remap(size_t segment) {
    unmap(segment);
    map(segment);
  }

 private:
  void map(size_t segment) {
    const auto made = cuda_.create_allocation({device_, bytes_of(segment), false});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_TRUE(cuda_.map(begin_of(segment), bytes_of(segment), made.value()).ok());
    EXPECT_TRUE(cuda_.allow_access(begin_of(segment), bytes_of(segment), device_).ok());
    EXPECT_TRUE(cuda_.release_allocation(made.value()).ok());  // the mapping holds it
    unmapped_ = 0;
  }

  sys::Cuda& cuda_;
  const int device_;
  const std::vector<uint64_t> lengths_;
  sys::DevicePtr base_ = 0;
  sys::DevicePtr unmapped_ = 0;  // the segment that is not there
};

}  // namespace braid::test
