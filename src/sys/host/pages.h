// Pages: anonymous zeroed memory that a NIC or a GPU is to read or write by itself. Page aligned,
// never shared with the heap, so that a stray write of a peer can hit nothing else.
//
// No forked child has them. With what it has, parent and child share pages until one of them writes,
// and on some kernels it is the parent that goes on in a copy, which the device does not know of.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace braid::sys {

class Pages {
 public:
  /// exhausted, with `what` in its words.
  static Result<Pages> map(std::string_view what, size_t bytes);
  Pages() = default;
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        process_(other.process_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(process_, other.process_);
    return *this;
  }
  /// In a forked child it does nothing: who knows what lies there by then.
  ~Pages();

  /// The memory stays as long as the process: something may still read or write it.
  void leave() { data_ = nullptr; }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Pages(std::byte* data, size_t bytes);
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int process_ = 0;  // that has them
};

}  // namespace braid::sys
