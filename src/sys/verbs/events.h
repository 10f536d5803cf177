// What a device reports beside completions: a port that went down, a queue pair that failed at the
// side which has no operation under way. Nobody would hear of it otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "sys/verbs/library.h"

namespace braid::sys::verbs {

/// An endpoint's ear. Written by whoever looks, read by the endpoint.
struct Watch {
  std::array<uint32_t, 2> queue_pairs = {};
  const ibv_cq* completions = nullptr;
  std::atomic<int> event = kNone;  // the first that ends the endpoint: enum ibv_event_type
  static constexpr int kNone = -1;
};

/// The events of one opened port. Any thread.
class Events {
 public:
  Events(const Library& library, ibv_context* context, uint8_t port);

  void add(Watch* watch);
  void remove(Watch* watch);
  /// Fetches what is there and tells the watches; never waits. At most every 10 ms, because it is a
  /// call of the system.
  void look(int64_t now_ns);

 private:
  void fetch_all();
  void tell(const ibv_async_event& event);

  const Library& library_;
  ibv_context* context_;
  uint8_t port_;
  std::atomic<int64_t> next_look_ns_ = 0;
  std::mutex mutex_;
  std::vector<Watch*> watches_;
};

}  // namespace braid::sys::verbs
