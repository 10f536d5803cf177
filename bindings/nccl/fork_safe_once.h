// Something that is made at its first use and kept for ever, also in a process that was forked off
// while another thread was making it: a static local's guard would stay shut there.
#pragma once

#include <unistd.h>

#include <atomic>
#include <thread>

namespace braid::nccl {

template <typename T>
class ForkSafeOnce {
 public:
  /// `make` and `make_as_orphan` answer a new T; one of them is called, once in a process. The
  /// latter when the parent's maker is not there to end its work and may have left locks behind.
  template <typename Make, typename MakeAsOrphan>
  T& get(const Make& make, const MakeAsOrphan& make_as_orphan) {
    while (true) {
      if (T* const made = made_.load(std::memory_order_acquire)) return *made;
      int maker = maker_.load();
      if (maker == getpid()) {
        std::this_thread::yield();  // another thread is at it
      } else if (maker_.compare_exchange_strong(maker, getpid())) {
        T* const made = maker == 0 ? make() : make_as_orphan();
        made_.store(made, std::memory_order_release);
        return *made;
      }
    }
  }

 private:
  std::atomic<T*> made_{nullptr};
  std::atomic<int> maker_{0};  // the process whose thread makes it; 0: nobody's
};

}  // namespace braid::nccl
