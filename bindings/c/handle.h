// What the functions of the C interface have in common: the handle, codes and messages, and the
// arguments of a C caller, which may be anything.
//
// No exception leaves a function of the C interface: every body runs inside guarded(), because a C
// caller cannot unwind one. The library throws none itself; what guarded() catches is the
// allocator's and the standard library's. Threads: messages and texts are per thread. All else on a
// braid_comm takes one thread at a time: a second one is refused as long as the first is in the
// function, not only as long as the comm is in its call, so that it cannot close the comm meanwhile.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <type_traits>

#include "base/dtype.h"
#include "base/status.h"
#include "braid/braid.h"
#include "comm/comm.h"

namespace braid::c {

/// What the functions of these names last returned to one thread.
struct Texts {
  std::string health, links, explain;
};

}  // namespace braid::c

struct braid_comm {
  std::unique_ptr<braid::comm::Comm> comm;
  std::atomic<bool> is_used{false};  // a thread is in a function that takes one at a time
  std::mutex mutex;                  // of the next
  std::map<std::thread::id, braid::c::Texts> texts;
};

namespace braid::c {

/// The comm is this thread's, until is_used is false again, or not: another one is in a call on it.
Status take(braid_comm& comm, const char* function);

/// Held by the thread that is in a function of one thread at a time.
class OneThread {
 public:
  OneThread(braid_comm& comm, const char* function) : comm_(comm), status_(take(comm, function)) {}
  ~OneThread() {
    if (status_.ok()) comm_.is_used.store(false, std::memory_order_release);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  const Status& status() const { return status_; }

 private:
  braid_comm& comm_;
  const Status status_;
};

/// Nothing of `what` is a fork's: its threads and peers are those of the process that made it.
Status check_process(const char* function, const char* what, pid_t made_in);

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

/// The same for what any thread may ask a comm, which must not be NULL.
template <typename Body>
braid_code on_any_thread(braid_comm* comm, const char* function, Body&& body) noexcept {
  return guarded([&]() -> Status {
    if (comm == nullptr) return invalid_argument("{}: comm is NULL", function);
    return body(*comm->comm);
  });
}

/// The same for a call, by one thread at a time.
template <typename Body>
braid_code on_comm(braid_comm* comm, const char* function, Body&& body) noexcept {
  return on_any_thread(comm, function, [&](comm::Comm& c) -> Status {
    const OneThread alone(*comm, function);
    BRAID_RETURN_IF_ERROR(alone.status());
    return body(c);
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
