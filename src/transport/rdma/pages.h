// Pages: anonymous zeroed memory for registration. Page aligned, never shared with the heap, so
// that a stray write of a peer can hit nothing else.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace braid::transport::rdma {

class Pages {
 public:
  static Result<Pages> map(size_t bytes);
  Pages() = default;
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Pages(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace braid::transport::rdma
