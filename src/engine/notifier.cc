#include "engine/notifier.h"

#include <exception>

#include "base/log.h"
#include "sys/host/thread.h"

namespace braid::engine {

Status Notifier::begin() {
  BRAID_ASSIGN_OR_RETURN(thread_, sys::start_thread("callbacks of an engine", [this] { serve(); }));
  return {};
}

void Notifier::close() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Notifier::run(std::function<void()> call) {
  if (!call) return;
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  wake_.notify_one();
}

void Notifier::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_ending_ || !calls_.empty(); });
    if (calls_.empty()) return;
    std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    try {
      call();
    } catch (const std::exception& thrown) {  // the user's own; the engine has none
      log::error("engine", "a callback threw: {}", thrown.what());
    }
    // The call may hold objects of the user's whose end calls the engine, which may come back here
    // with a callback of its own.
    call = nullptr;
    lock.lock();
  }
}

}  // namespace braid::engine
