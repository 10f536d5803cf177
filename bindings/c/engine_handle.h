// What the functions of the engine's C interface have in common: the handles, and the arguments of
// a C caller, which may be anything. The handles hold the engine's shared pointers, so that one may
// be freed at any time.
#pragma once

#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "braid/engine.h"
#include "engine/engine.h"
#include "handle.h"

struct braid_engine {
  std::unique_ptr<braid::engine::Engine> engine;
  pid_t process = getpid();  // its threads are there, and in no fork of it
};
struct braid_region {
  std::shared_ptr<braid::engine::Region> region;
};
struct braid_remote {
  braid::engine::RemoteRegion region;
};
struct braid_peer {
  braid::engine::Address address;
};
struct braid_ticket {
  braid::engine::TicketPtr ticket;
  std::optional<uint32_t> expected;  // of an expectation: its immediate
  pid_t process = getpid();
};

namespace braid::c {

inline Status check_pointer(const char* function, const char* name, const void* pointer) {
  if (pointer != nullptr) return {};
  return invalid_argument("{}: {} is NULL", function, name);
}

/// Runs body(engine) when there is one, of this process, and all of the named pointers are there.
template <typename Body>
braid_code on_engine(braid_engine* self, const char* function,
                     std::initializer_list<std::pair<const char*, const void*>> needed,
                     Body&& body) noexcept {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointer(function, "engine", self));
    for (const auto& [name, pointer] : needed)
      BRAID_RETURN_IF_ERROR(check_pointer(function, name, pointer));
    BRAID_RETURN_IF_ERROR(check_process(function, "engine", self->process));
    return body(*self->engine);
  });
}

/// Takes the options of a caller who was compiled with an older header: what they do not have yet
/// stays as it is in `all`.
template <typename Options>
Status adopt(const char* function, const Options* given, Options& all) {
  if (given == nullptr) return {};
  if (given->size < sizeof(size_t) || given->size > sizeof(Options))
    return invalid_argument("{}: options of {} bytes, this library knows {}", function, given->size,
                            sizeof(Options));
  std::memcpy(&all, given, given->size);
  all.size = sizeof(Options);
  return {};
}

/// Copies `bytes` to a caller who has room for *size of them, and tells how many there are. Without
/// `out` it only tells.
Status hand_out(const char* function, std::string_view bytes, void* out, size_t* size);

engine::Callback callback_of(braid_engine_callback callback, void* context);

/// Below 0: for ever.
Deadline deadline_of(int64_t timeout_ns);

inline std::string_view view_of(const void* bytes, size_t size) {
  return {static_cast<const char*>(bytes), size};
}

}  // namespace braid::c
