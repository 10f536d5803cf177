// The C interface: integers and pointers in, a code out. Each function turns its arguments into the
// types of coll/, calls it, and keeps the message of a failure for braid_last_error().
//
// No exception leaves this file: every body runs inside guarded(), because a C caller cannot unwind
// one. The library throws none itself; what guarded() catches is the allocator's and the standard
// library's. Threads: last_error is per thread; a braid_comm takes one thread at a time, and the
// comm's own guard refuses a second one.
#include "braid/braid.h"

#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/tune/tune.h"
#include "comm/comm.h"
#include "group/group.h"
#include "plan/plan.h"

struct braid_comm {
  std::unique_ptr<braid::comm::Comm> comm;
  std::string health;   // what braid_health() last returned
  std::string explain;  // what braid_explain() last returned
};

namespace {

using braid::Code;
using braid::Dtype;
using braid::RedOp;
using braid::Status;

static_assert(static_cast<int>(Code::kPeerLost) == BRAID_PEER_LOST &&
              static_cast<int>(Code::kInternal) == BRAID_INTERNAL);
static_assert(static_cast<int>(Dtype::kFloat8E5m2) == BRAID_FLOAT8_E5M2 &&
              static_cast<int>(Dtype::kUint16) == BRAID_UINT16);
static_assert(static_cast<int>(RedOp::kMax) == BRAID_MAX &&
              static_cast<int>(RedOp::kAvg) == BRAID_AVG);
// all_to_all_v hands the caller's size_t arrays on as they are.
static_assert(sizeof(size_t) == sizeof(uint64_t) && std::is_unsigned_v<size_t>);

thread_local std::string last_error;

braid_code answer(const Status& status) {
  if (status.ok()) return BRAID_OK;
  last_error = status.message();
  return static_cast<braid_code>(status.code());
}

/// Runs `body`, which returns a Status, and lets nothing be thrown past it.
template <typename Body>
braid_code guarded(Body&& body) noexcept {
  try {
    return answer(body());
  } catch (const std::bad_alloc&) {
    last_error.clear();  // a message would need the memory that is not there
    return BRAID_EXHAUSTED;
  } catch (const std::exception& e) {
    try {
      return answer(braid::internal_error("unexpected exception: {}", e.what()));
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
    if (comm == nullptr) return braid::invalid_argument("{}: comm is NULL", function);
    return body(*comm->comm);
  });
}

// The enums of a C caller may hold any integer; 255 is in neither enum, so coll/ refuses it by
// name.
Dtype to_dtype(braid_dtype dtype) {
  return static_cast<Dtype>(dtype >= 0 && dtype < 255 ? dtype : 255);
}
RedOp to_op(braid_op op) { return static_cast<RedOp>(op >= 0 && op < 255 ? op : 255); }

std::span<const uint64_t> counts_of(const size_t* counts, int size) {
  static_assert(std::is_same_v<size_t, uint64_t>, "one representation, checked above for size too");
  return {counts, static_cast<size_t>(size)};
}

Status create(braid_comm** out) {
  if (out == nullptr)
    return braid::invalid_argument("braid_init: comm is NULL, nowhere to put the new comm");
  *out = nullptr;
  std::vector<std::string> warnings;
  BRAID_ASSIGN_OR_RETURN(const braid::Config config, braid::Config::from_environment(&warnings));
  for (const std::string& warning : warnings) braid::log::warn("base", "{}", warning);
  BRAID_ASSIGN_OR_RETURN(const braid::group::Identity identity,
                         braid::group::identity_from_environment(config));
  auto made = std::make_unique<braid_comm>();
  BRAID_ASSIGN_OR_RETURN(made->comm, braid::comm::Comm::create(identity, config));
  BRAID_RETURN_IF_ERROR(braid::coll::ensure_tuned(*made->comm, nullptr));
  *out = made.release();
  return {};
}

Status explain(braid_comm& comm, const char* op, uint64_t bytes) {
  if (op == nullptr) return braid::invalid_argument("braid_explain: op is NULL");
  BRAID_ASSIGN_OR_RETURN(const braid::plan::Op parsed, braid::plan::parse_op(op));
  BRAID_ASSIGN_OR_RETURN(
      comm.explain,
      comm.comm->explain_json({.op = parsed, .bytes = bytes, .num_ranks = comm.comm->size()}));
  return {};
}

}  // namespace

extern "C" {

braid_code braid_init(braid_comm** comm) {
  return guarded([&] { return create(comm); });
}

braid_code braid_close(braid_comm* comm) {
  return guarded([&]() -> Status {
    if (comm == nullptr) return {};
    const std::unique_ptr<braid_comm> owned(comm);
    return owned->comm->close();
  });
}

int braid_rank(const braid_comm* comm) { return comm ? comm->comm->rank() : -1; }
int braid_size(const braid_comm* comm) { return comm ? comm->comm->size() : -1; }

braid_code braid_all_gather(braid_comm* comm, const void* send, void* recv, size_t count,
                            braid_dtype dtype) {
  return on_comm(comm, "braid_all_gather", [&](auto& c) {
    return braid::coll::all_gather(c, send, recv, count, to_dtype(dtype));
  });
}

braid_code braid_all_reduce(braid_comm* comm, const void* send, void* recv, size_t count,
                            braid_dtype dtype, braid_op op) {
  return on_comm(comm, "braid_all_reduce", [&](auto& c) {
    return braid::coll::all_reduce(c, send, recv, count, to_dtype(dtype), to_op(op));
  });
}

braid_code braid_reduce_scatter(braid_comm* comm, const void* send, void* recv, size_t count,
                                braid_dtype dtype, braid_op op) {
  return on_comm(comm, "braid_reduce_scatter", [&](auto& c) {
    return braid::coll::reduce_scatter(c, send, recv, count, to_dtype(dtype), to_op(op));
  });
}

braid_code braid_all_to_all(braid_comm* comm, const void* send, void* recv, size_t count,
                            braid_dtype dtype) {
  return on_comm(comm, "braid_all_to_all", [&](auto& c) {
    return braid::coll::all_to_all(c, send, recv, count, to_dtype(dtype));
  });
}

braid_code braid_all_to_all_v(braid_comm* comm, const void* send, const size_t* send_counts,
                              void* recv, const size_t* recv_counts, braid_dtype dtype) {
  return on_comm(comm, "braid_all_to_all_v", [&](auto& c) -> Status {
    if (send_counts == nullptr || recv_counts == nullptr)
      return braid::invalid_argument("braid_all_to_all_v: {} is NULL, {} counts expected",
                                     send_counts == nullptr ? "send_counts" : "recv_counts",
                                     c.size());
    return braid::coll::all_to_all_v(c, send, counts_of(send_counts, c.size()), recv,
                                     counts_of(recv_counts, c.size()), to_dtype(dtype));
  });
}

braid_code braid_broadcast(braid_comm* comm, void* buf, size_t count, braid_dtype dtype, int root) {
  return on_comm(comm, "braid_broadcast", [&](auto& c) {
    return braid::coll::broadcast(c, buf, count, to_dtype(dtype), root);
  });
}

braid_code braid_barrier(braid_comm* comm) {
  return on_comm(comm, "braid_barrier", [](auto& c) { return braid::coll::barrier(c); });
}

const char* braid_health(braid_comm* comm) {
  const braid_code code = on_comm(comm, "braid_health", [&](auto& c) -> Status {
    comm->health = c.health_json();
    return {};
  });
  return code == BRAID_OK ? comm->health.c_str() : nullptr;
}

const char* braid_explain(braid_comm* comm, const char* op, uint64_t bytes) {
  const braid_code code =
      on_comm(comm, "braid_explain", [&](auto&) { return explain(*comm, op, bytes); });
  return code == BRAID_OK ? comm->explain.c_str() : nullptr;
}

const char* braid_code_name(braid_code code) { return braid::code_name(static_cast<Code>(code)); }
const char* braid_last_error(void) { return last_error.c_str(); }
const char* braid_version(void) { return BRAID_VERSION; }

}  // extern "C"
