#include "sys/net/private_fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace braid::sys {

namespace {

// Held across a fork by the thread that forks, so that the child finds the set whole. It only calls
// dup3 there.
struct Registry {
  std::mutex mutex;
  std::set<int> fds;
  int dev_null = -1;
};

// Never destroyed: descriptors may outlive static destructors.
Registry& registry() {
  static Registry* const kOne = [] {
    auto* made = new Registry;
    made->dev_null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                     [] {
                       for (const int fd : registry().fds)
                         (void)::dup3(registry().dev_null, fd, O_CLOEXEC);
                       registry().fds.clear();
                       registry().mutex.unlock();
                     });
    return made;
  }();
  return *kOne;
}

}  // namespace

PrivateFd::PrivateFd(Fd fd) : fd_(std::move(fd)) {
  if (!fd_.is_open()) return;
  const std::lock_guard lock(registry().mutex);
  registry().fds.insert(fd_.get());
}

PrivateFd& PrivateFd::operator=(PrivateFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void PrivateFd::reset() {
  if (!fd_.is_open()) return;
  // Under the lock, so that no fork falls between: the number may be somebody else's as soon as it
  // is closed.
  const std::lock_guard lock(registry().mutex);
  registry().fds.erase(fd_.get());
  fd_.reset();
}

}  // namespace braid::sys
