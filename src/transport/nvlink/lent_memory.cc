#include "transport/nvlink/lent_memory.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "sys/cuda/owned.h"
#include "sys/host/thread.h"

namespace braid::nvlink {

namespace {

struct Lent;

/// What is lent now, by address: addresses of all GPUs of a process differ. Never destroyed:
/// a comm may be closed later than static objects are.
struct Book {
  std::mutex mutex;
  std::map<sys::DevicePtr, std::weak_ptr<const Lent>> entries;
};
Book& book() {
  static Book* const the = new Book;
  return *the;
}

struct Lent {
  Lent(sys::Cuda& of, int on, sys::DevicePtr at) : cuda(of), device(on), memory(at) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent();

  sys::Cuda& cuda;
  const int device;
  const sys::DevicePtr memory;
};

/// What this thread lets go of as its owner.
thread_local const Lent* owned_here = nullptr;

void free_now(sys::Cuda& cuda, int device, sys::DevicePtr memory) {
  const auto scope = sys::CurrentDevice::use(cuda, device);
  (void)cuda.free(memory);
}

/// The thread that frees what peers let go of last, made for the first of it. Where there is none to
/// be had, that is kept for the next who comes. Never destroyed, for the same reason as the book.
class Freeing {
 public:
  static Freeing& one() {
    static Freeing* const the = new Freeing;
    return *the;
  }
  void add(std::function<void()> free) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(free));
    begin();
    changed_.notify_all();
  }
  void await_all() {
    std::unique_lock lock(mutex_);
    if (!waiting_.empty()) begin();
    changed_.wait(lock, [this] { return waiting_.empty() && !is_busy_; });
  }

 private:
  void begin() {  // under mutex_
    if (thread_.joinable()) return;
    auto thread = sys::start_thread("what peers let go of", [this] { run(); });
    if (thread.ok())
      thread_ = std::move(thread).value();
    else
      log::warn("transport", "memory of a gpu is not freed yet: {}", thread.status().message());
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      const std::function<void()> free = std::move(waiting_.front());
      waiting_.pop_front();
      is_busy_ = true;
      lock.unlock();
      free();
      lock.lock();
      is_busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool is_busy_ = false;
  std::thread thread_;
};

Lent::~Lent() {
  {
    // Before its address can be another's.
    const std::lock_guard lock(book().mutex);
    book().entries.erase(memory);
  }
  if (owned_here == this)
    free_now(cuda, device, memory);
  else
    Freeing::one().add([&of = cuda, on = device, at = memory] { free_now(of, on, at); });
}

}  // namespace

Hold lend(sys::Cuda& cuda, int device, sys::DevicePtr memory) {
  auto lent = std::make_shared<const Lent>(cuda, device, memory);
  {
    const std::lock_guard lock(book().mutex);
    book().entries[memory] = lent;
  }
  const Lent* const raw = lent.get();
  return Hold(raw, [lent = std::move(lent)](const void*) mutable {
    owned_here = lent.get();
    lent.reset();
    owned_here = nullptr;
  });
}

void await_frees() { Freeing::one().await_all(); }

Hold borrow(sys::DevicePtr memory) {
  const std::lock_guard lock(book().mutex);
  const auto found = book().entries.find(memory);
  return found == book().entries.end() ? nullptr : found->second.lock();
}

}  // namespace braid::nvlink
