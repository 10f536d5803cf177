// What comes in through the engine's C interface: counts, messages and notifications.
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "engine_handle.h"

namespace engine = braid::engine;
using braid::Status;
using braid::c::callback_of;
using braid::c::deadline_of;
using braid::c::hand_out;
using braid::c::on_engine;

namespace {

template <typename Take>
Status take(const char* function, void* out, size_t* bytes, Take&& take_one) {
  if (*bytes < BRAID_ENGINE_MOST_MESSAGE_BYTES)
    return braid::invalid_argument("{}: room for {} bytes, asked for {}", function, *bytes,
                                   int{BRAID_ENGINE_MOST_MESSAGE_BYTES});
  const std::optional<engine::Message> found = take_one();
  if (!found) return braid::timeout("{}: nothing has come", function);
  return hand_out(function, found->bytes, out, bytes);
}

}  // namespace

braid_code braid_engine_expect(braid_engine* self, uint32_t immediate, uint64_t count,
                               uint64_t* flag, braid_engine_callback callback, void* context,
                               braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
    auto out = std::make_unique<braid_ticket>();
    BRAID_ASSIGN_OR_RETURN(out->ticket, e.expect(immediate, count, callback_of(callback, context),
                                                 reinterpret_cast<std::atomic<uint64_t>*>(flag)));
    out->expected = immediate;
    if (ticket != nullptr) *ticket = out.release();
    return {};
  };
  return on_engine(self, __func__, {}, run);
}

braid_code braid_engine_forget(braid_engine* self, uint32_t immediate) {
  return on_engine(self, __func__, {}, [&](engine::Engine& e) -> Status {
    e.forget(immediate);
    return {};
  });
}

braid_code braid_engine_discard(braid_engine* self, uint32_t immediate) {
  return on_engine(self, __func__, {}, [&](engine::Engine& e) -> Status {
    e.discard(immediate);
    return {};
  });
}

braid_code braid_engine_count(braid_engine* self, uint32_t immediate, uint64_t* count) {
  return on_engine(self, __func__, {{"count", count}}, [&](engine::Engine& e) -> Status {
    *count = e.count(immediate);
    return {};
  });
}

braid_code braid_engine_recv(braid_engine* self, int64_t timeout_ns, void* out, size_t* bytes) {
  return on_engine(self, __func__, {{"out", out}, {"bytes", bytes}}, [&](engine::Engine& e) {
    return take("braid_engine_recv", out, bytes,
                [&] { return e.receive(deadline_of(timeout_ns)); });
  });
}

braid_code braid_engine_take_notification(braid_engine* self, int64_t timeout_ns, void* out,
                                          size_t* bytes) {
  return on_engine(self, __func__, {{"out", out}, {"bytes", bytes}}, [&](engine::Engine& e) {
    return take("braid_engine_take_notification", out, bytes,
                [&] { return e.take_notification(deadline_of(timeout_ns)); });
  });
}
