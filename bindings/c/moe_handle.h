// What the functions of the C interface of dispatch and combine have in common: the buffer's handle,
// and the arguments of a C caller.
#pragma once

#include <unistd.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>

#include "braid/moe.h"
#include "handle.h"
#include "moe/buffer.h"

namespace braid::c {

/// What a low-latency dispatch was given, for its combine.
struct Dispatched {
  uint64_t phase = 0;  // 0: none
  uint64_t ids_hash = 0;
  int max_tokens = 0;
  int num_experts = 0;
};

}  // namespace braid::c

struct braid_moe {
  explicit braid_moe(std::unique_ptr<braid::moe::Buffer> made) : buffer(std::move(made)) {}

  void note(const braid::c::Dispatched& dispatch) {
    const std::lock_guard lock(mutex);
    dispatches[num_dispatches++ % dispatches.size()] = dispatch;
  }
  braid::c::Dispatched of(uint64_t phase) {
    const std::lock_guard lock(mutex);
    for (const auto& each : dispatches)
      if (phase != 0 && each.phase == phase) return each;
    return {};
  }

  std::unique_ptr<braid::moe::Buffer> buffer;
  const pid_t process = getpid();  // a fork has its windows, too, and they are memory of both

  static constexpr size_t kAlive = 2;  // results at a time
  std::mutex mutex;                    // for who does not heed "one thread at a time"
  std::array<braid::c::Dispatched, kAlive> dispatches;
  size_t num_dispatches = 0;
};

namespace braid::c {

/// Runs body(buffer) when there is one, of this process.
template <typename Body>
braid_code on_moe(braid_moe* handle, const char* function, Body&& body) noexcept {
  return guarded([&]() -> Status {
    if (handle == nullptr) return invalid_argument("{}: moe is NULL", function);
    BRAID_RETURN_IF_ERROR(check_process(function, "buffer", handle->process));
    return body(*handle->buffer);
  });
}

inline Status check_pointers(const char* function, std::initializer_list<const void*> pointers) {
  for (const void* each : pointers)
    if (each == nullptr) return invalid_argument("{}: an argument is NULL", function);
  return {};
}

}  // namespace braid::c
