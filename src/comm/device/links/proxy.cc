#include "comm/device/links/proxy.h"

#include <chrono>

#include "base/clock.h"
#include "sys/host/thread.h"

namespace braid::comm {

namespace {

// Longer than a slot's way to a peer and back (tcp on loopback: 20 to 60 us).
constexpr int64_t kProxyBusyNs = 200'000;
constexpr auto kProxyPause = std::chrono::microseconds(50);

}  // namespace

Status Proxy::begin() {
  BRAID_ASSIGN_OR_RETURN(thread_, sys::start_thread("proxy of a gpu's NIC", [this] { run(); }));
  return {};
}

void Proxy::run() {
  int64_t last_moved_ns = now_ns();
  while (!must_stop_) {
    if (mirrors_->progress()) {
      last_moved_ns = now_ns();
    } else if (now_ns() - last_moved_ns < kProxyBusyNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kProxyPause);
    }
  }
}

void Proxy::stop() {
  must_stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace braid::comm
