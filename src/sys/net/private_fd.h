// A descriptor that forked children do not get: in the child it becomes /dev/null.
//
// Close-on-exec does not cover fork without exec, which is how Python's data loaders start their
// workers. A worker that held a rank's control connection would keep it open after the rank was
// killed, and nobody would learn of the death. The kernel has no close-on-fork, so a fork handler
// puts /dev/null under the number; the object in the child stays valid and closes that.
#pragma once

#include <utility>

#include "sys/fd.h"

namespace braid::sys {

class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(Fd fd);
  PrivateFd(PrivateFd&& other) noexcept : fd_(std::move(other.fd_)) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept;
  ~PrivateFd() { reset(); }

  int get() const { return fd_.get(); }
  bool is_open() const { return fd_.is_open(); }
  void reset();

 private:
  Fd fd_;
};

}  // namespace braid::sys
