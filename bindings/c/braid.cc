// The C interface: integers and pointers in, a code out. Each function turns its arguments into the
// types of coll/, calls it, and keeps the message of a failure for braid_last_error(). Calls on GPU
// memory are in on_stream.cc, what all functions have in common is in handle.h.
#include "braid/braid.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
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
#include "handle.h"
#include "plan/plan.h"

namespace braid::c {

namespace {

static_assert(static_cast<int>(Code::kPeerLost) == BRAID_PEER_LOST &&
              static_cast<int>(Code::kCancelled) == BRAID_CANCELLED);
static_assert(static_cast<int>(Dtype::kFloat8E5m2) == BRAID_FLOAT8_E5M2 &&
              static_cast<int>(Dtype::kUint16) == BRAID_UINT16);
static_assert(static_cast<int>(RedOp::kMax) == BRAID_MAX &&
              static_cast<int>(RedOp::kAvg) == BRAID_AVG);

thread_local std::string last_error;

}  // namespace

braid_code answer(const Status& status) {
  if (status.ok()) return BRAID_OK;
  last_error = status.message();
  return static_cast<braid_code>(status.code());
}

void forget_last_error() noexcept { last_error.clear(); }

Status take(braid_comm& comm, const char* function) {
  if (!comm.is_used.exchange(true, std::memory_order_acquire)) return {};
  return invalid_argument(
      "{}: another thread is in a call on this comm; a comm takes one thread at a time", function);
}

Status check_process(const char* function, const char* what, pid_t made_in) {
  if (getpid() == made_in) return {};
  return invalid_argument("{}: the {} was made by process {} and cannot be used in its fork {}",
                          function, what, made_in, getpid());
}

Status check_counts(const char* function, const size_t* send_counts, const size_t* recv_counts,
                    int size) {
  if (send_counts != nullptr && recv_counts != nullptr) return {};
  return invalid_argument("{}: {} is NULL, {} counts expected", function,
                          send_counts == nullptr ? "send_counts" : "recv_counts", size);
}

}  // namespace braid::c

namespace {

using braid::Code;
using braid::Status;
using braid::c::counts_of;
using braid::c::guarded;
using braid::c::on_any_thread;
using braid::c::on_comm;
using braid::c::Texts;
using braid::c::to_dtype;
using braid::c::to_op;

using braid::Config;
using braid::group::Identity;

Status check_place(const char* function, braid_comm** out) {
  if (out == nullptr)
    return braid::invalid_argument("{}: comm is NULL, nowhere to put the new comm", function);
  *out = nullptr;
  return {};
}

braid::Result<Config> config_here() {
  std::vector<std::string> warnings;
  BRAID_ASSIGN_OR_RETURN(Config config, Config::from_environment(&warnings));
  for (const std::string& warning : warnings) braid::log::warn("base", "{}", warning);
  return config;
}

Status create(braid_comm** out, const Identity& identity, const Config& config) {
  auto made = std::make_unique<braid_comm>();
  BRAID_ASSIGN_OR_RETURN(made->comm, braid::comm::Comm::create(identity, config));
  BRAID_RETURN_IF_ERROR(braid::coll::ensure_tuned(*made->comm, nullptr));
  *out = made.release();
  return {};
}

Status init(braid_comm** out) {
  BRAID_RETURN_IF_ERROR(check_place("braid_init", out));
  BRAID_ASSIGN_OR_RETURN(const Config config, config_here());
  BRAID_ASSIGN_OR_RETURN(const Identity identity, braid::group::identity_from_environment(config));
  return create(out, identity, config);
}

Status join(braid_comm** out, int rank, int size, const char* address, int port,
            int64_t deadline_ms) {
  BRAID_RETURN_IF_ERROR(check_place("braid_join", out));
  if (size < 1 || rank < 0 || rank >= size)
    return braid::invalid_argument("braid_join: rank {} of {}: asked for 0 to size - 1", rank,
                                   size);
  if (size > 1 && (address == nullptr || address[0] == '\0'))
    return braid::invalid_argument("braid_join: address is NULL or empty; rank 0's is needed");
  if (size > 1 && (port < 1 || port > UINT16_MAX))
    return braid::invalid_argument("braid_join: port is {}, asked for 1 to 65535", port);
  if (deadline_ms < 0)
    return braid::invalid_argument("braid_join: deadline_ms is {}, asked for 0 or more",
                                   deadline_ms);
  BRAID_ASSIGN_OR_RETURN(Config config, config_here());
  if (deadline_ms > 0)
    BRAID_RETURN_IF_ERROR(config.set("BRAID_TIMEOUT", fmt::format("{}ms", deadline_ms)));
  Identity identity;
  identity.rank = identity.local_rank = rank;
  identity.size = size;
  if (size > 1) identity.store_address = address;
  if (size > 1) identity.store_port = static_cast<uint16_t>(port);
  identity.job_token = config.text("BRAID_JOB_TOKEN");
  return create(out, identity, config);
}

Status close(braid_comm* comm) {
  if (comm == nullptr) return {};
  BRAID_RETURN_IF_ERROR(braid::c::take(*comm, "braid_close"));
  const std::unique_ptr<braid_comm> owned(comm);
  return owned->comm->close();
}

/// What another thread is given leaves these alone.
Texts& own_texts(braid_comm& comm) {
  const std::lock_guard lock(comm.mutex);
  return comm.texts[std::this_thread::get_id()];
}

braid::Result<std::string> explain(const braid::comm::Comm& comm, const char* op, uint64_t bytes) {
  if (op == nullptr) return braid::invalid_argument("braid_explain: op is NULL");
  BRAID_ASSIGN_OR_RETURN(const braid::plan::Op parsed, braid::plan::parse_op(op));
  return comm.explain_json({.op = parsed, .bytes = bytes, .num_ranks = comm.size()});
}

/// `make` answers what is kept as `text` until this thread asks again; NULL when it cannot.
template <typename Make>
const char* text_of(braid_comm* comm, const char* function, std::string Texts::* text,
                    Make&& make) {
  const char* given = nullptr;
  (void)on_any_thread(comm, function, [&](auto& c) -> Status {
    BRAID_ASSIGN_OR_RETURN(std::string made, make(c));
    std::string& place = own_texts(*comm).*text;
    place = std::move(made);
    given = place.c_str();
    return {};
  });
  return given;
}

}  // namespace

extern "C" {

braid_code braid_init(braid_comm** comm) {
  return guarded([&] { return init(comm); });
}

braid_code braid_join(braid_comm** comm, int rank, int size, const char* address, int port,
                      int64_t deadline_ms) {
  return guarded([&] { return join(comm, rank, size, address, port, deadline_ms); });
}

braid_code braid_close(braid_comm* comm) {
  return guarded([&] { return close(comm); });
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
    BRAID_RETURN_IF_ERROR(
        braid::c::check_counts("braid_all_to_all_v", send_counts, recv_counts, c.size()));
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
  return text_of(comm, "braid_health", &Texts::health,
                 [](auto& c) { return braid::Result<std::string>(c.health_json()); });
}

const char* braid_links(braid_comm* comm, int on_gpu) {
  return text_of(comm, "braid_links", &Texts::links,
                 [&](auto& c) { return braid::Result<std::string>(c.links_json(on_gpu != 0)); });
}

const char* braid_explain(braid_comm* comm, const char* op, uint64_t bytes) {
  return text_of(comm, "braid_explain", &Texts::explain,
                 [&](auto& c) { return explain(c, op, bytes); });
}

const char* braid_code_name(braid_code code) { return braid::code_name(static_cast<Code>(code)); }
const char* braid_last_error(void) { return braid::c::last_error.c_str(); }
const char* braid_version(void) { return BRAID_VERSION; }

}  // extern "C"
