// What the functions of the C interface have in common: the handle, codes and messages, and the
// arguments of a C caller, which may be anything.
//
// No exception leaves a function of the C interface: every body runs inside guarded(), because a C
// caller cannot unwind one. The library throws none itself; what guarded() catches is the
// allocator's and the standard library's. Threads: messages are per thread; a braid_comm takes one
// thread at a time, and the comm's own guard refuses a second one.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "base/status.h"
#include "braid/braid.h"
#include "comm/comm.h"

struct braid_comm {
  std::unique_ptr<braid::comm::Comm> comm;
  std::string health;   // what braid_health() last returned
  std::string links;    // braid_links()
  std::string explain;  // what braid_explain() last returned
};

namespace braid::c {

/// The code of a Status, whose message braid_last_error() has from now on.
braid_code answer(const Status& status);
/// For when a message would need the memory that is not there.
void forget_last_error() noexcept;

/// Runs `body`, which returns a Status, and lets nothing be thrown past it.
template <typename Body>
braid_code guarded(Body&& body) noexcept {
  try {
    return answer(body());
  } catch (const std::bad_alloc&) {
    forget_last_error();
    return BRAID_EXHAUSTED;
  } catch (const std::exception& e) {
    try {
      return answer(internal_error("unexpected exception: {}", e.what()));
    } catch (...) {
      return BRAID_INTERNAL;
    }
  } catch (...) {
    return BRAID_INTERNAL;
  }
}

/// The same for a call on a comm, which must not be NULL.
template <typename Body>
braid_code on_comm(braid_comm* comm, const char* function, Body&& body) noexcept {
  return guarded([&]() -> Status {
    if (comm == nullptr) return invalid_argument("{}: comm is NULL", function);
    return body(*comm->comm);
  });
}

// The enums of a C caller may hold any integer; 255 is in neither enum, so coll/ refuses it by
// name.
// NOLINTBEGIN(clang-analyzer-optin.core.EnumCastOutOfRange)
inline Dtype to_dtype(braid_dtype dtype) {
  return static_cast<Dtype>(dtype >= 0 && dtype < 255 ? dtype : 255);
}
inline RedOp to_op(braid_op op) { return static_cast<RedOp>(op >= 0 && op < 255 ? op : 255); }
// NOLINTEND(clang-analyzer-optin.core.EnumCastOutOfRange)

/// One count per rank, as the caller's size_t array has them. `counts` must not be NULL.
inline std::span<const uint64_t> counts_of(const size_t* counts, int size) {
  static_assert(std::is_same_v<size_t, uint64_t>, "the caller's arrays are handed on as they are");
  return {counts, static_cast<size_t>(size)};
}

/// Neither array of counts is NULL.
Status check_counts(const char* function, const size_t* send_counts, const size_t* recv_counts,
                    int size);

}  // namespace braid::c
