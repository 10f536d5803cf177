#include "sys/verbs/events.h"

#include <fcntl.h>

#include <algorithm>

#include "base/log.h"

namespace braid::sys::verbs {
namespace {

constexpr int64_t kBetweenLooksNs = 10'000'000;

// Which of an event's fields may be read follows from its type.
bool concerns(const ibv_async_event& event, const Watch& watch, uint8_t port) {
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL: return true;
    case IBV_EVENT_PORT_ERR: return event.element.port_num == port;
    case IBV_EVENT_CQ_ERR: return event.element.cq == watch.completions;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return std::ranges::find(watch.queue_pairs, event.element.qp->qp_num) !=
             watch.queue_pairs.end();
    default: return false;  // nothing that ends a connection
  }
}

}  // namespace

Events::Events(const Library& library, ibv_context* context, uint8_t port)
    : library_(library), context_(context), port_(port) {
  const int flags = fcntl(context_->async_fd, F_GETFL);
  fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);
}

void Events::add(Watch* watch) {
  const std::lock_guard lock(mutex_);
  watches_.push_back(watch);
}

void Events::remove(Watch* watch) {
  const std::lock_guard lock(mutex_);
  std::erase(watches_, watch);
}

void Events::look(int64_t now_ns) {
  if (now_ns < next_look_ns_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another endpoint looks at this moment
  next_look_ns_.store(now_ns + kBetweenLooksNs, std::memory_order_relaxed);
  fetch_all();
}

// An event that is not acknowledged would keep its queue pair from being destroyed for ever.
void Events::fetch_all() {
  ibv_async_event event{};
  while (library_.get_async_event(context_, &event) == 0) {
    tell(event);
    library_.ack_async_event(&event);
  }
}

void Events::tell(const ibv_async_event& event) {
  log::debug("sys", "verbs: event {}", library_.event_type_str(event.event_type));
  for (Watch* watch : watches_) {
    if (!concerns(event, *watch, port_)) continue;
    int none = Watch::kNone;
    watch->event.compare_exchange_strong(none, event.event_type);
  }
}

}  // namespace braid::sys::verbs
