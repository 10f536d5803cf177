// A descriptor that one thread sleeps on in poll() and any other makes readable.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/status.h"
#include "sys/fd.h"

namespace braid::sys {

class Wake {
 public:
  static Result<Wake> create() {
    Wake wake;
    wake.fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake.fd_.is_open()) return exhausted("eventfd: error {}", errno);
    return wake;
  }
  int fd() const { return fd_.get(); }
  /// Any thread. A second signal before drain() adds nothing.
  void signal() const {
    const uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof one);
  }
  /// The sleeper, before it looks at what was signalled: a signal after this one wakes it again.
  void drain() const {
    uint64_t count = 0;
    (void)!::read(fd_.get(), &count, sizeof count);
  }

 private:
  Fd fd_;
};

}  // namespace braid::sys
