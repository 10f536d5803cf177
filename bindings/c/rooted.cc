// The C interface: collectives with a root, and those with blocks of several lengths, on host and
// on GPU memory.
#include <cstdint>
#include <span>

#include "base/status.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_gather/steps.h"
#include "coll/arguments.h"
#include "coll/device/collectives.h"
#include "coll/gather/gather.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/reduce_scatter/steps.h"
#include "coll/rooted_reduce/rooted_reduce.h"
#include "coll/scatter/scatter.h"
#include "handle.h"
#include "on_gpu.h"

namespace {

namespace coll = braid::coll;
namespace comm = braid::comm;
namespace sys = braid::sys;
using braid::Dtype;
using braid::RedOp;
using braid::Status;
using braid::c::address_of;
using braid::c::on_comm;
using braid::c::on_gpu;
using braid::c::to_dtype;
using braid::c::to_op;
using coll::Buffer;
using Counts = std::span<const uint64_t>;

Status check_given(const size_t* counts, int size) {
  if (counts != nullptr) return {};
  return braid::invalid_argument("counts is NULL, {} counts expected", size);
}

/// Root's buffer, which the other ranks need not have: nothing there.
Buffer at_root(const comm::Comm& c, int root, const Buffer& buffer) {
  return c.rank() == root ? buffer : Buffer{buffer.name, nullptr, 0};
}

Status reduce_on(comm::Comm& c, const void* send, void* recv, size_t count, Dtype dtype, RedOp op,
                 int root, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(coll::check_root(root, c.size()));
  BRAID_RETURN_IF_ERROR(coll::check_redop(op));
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, coll::buffer_bytes(count, 1, dtype));
  const Buffer from{"send", send, bytes}, to = at_root(c, root, {"recv", recv, bytes});
  BRAID_RETURN_IF_ERROR(coll::check_in_place_or_apart(from, to, 0));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::rooted_reduce(device, address_of(send), address_of(to.data), count, dtype,
                                       op, root, stream);
  });
}

Status gather_on(comm::Comm& c, const void* send, void* recv, size_t count, Dtype dtype, int root,
                 sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(coll::check_root(root, c.size()));
  const auto size = static_cast<uint64_t>(c.size());
  BRAID_ASSIGN_OR_RETURN(const uint64_t all, coll::buffer_bytes(count, size, dtype));
  const Buffer from{"send", send, all / size}, to = at_root(c, root, {"recv", recv, all});
  BRAID_RETURN_IF_ERROR(
      coll::check_in_place_or_apart(from, to, static_cast<uint64_t>(root) * from.bytes));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::gather(device, address_of(send), address_of(to.data), count, dtype, root,
                                stream);
  });
}

Status scatter_on(comm::Comm& c, const void* send, void* recv, size_t count, Dtype dtype, int root,
                  sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(coll::check_root(root, c.size()));
  const auto size = static_cast<uint64_t>(c.size());
  BRAID_ASSIGN_OR_RETURN(const uint64_t all, coll::buffer_bytes(count, size, dtype));
  const Buffer from = at_root(c, root, {"send", send, all}), to{"recv", recv, all / size};
  BRAID_RETURN_IF_ERROR(
      coll::check_in_place_or_apart(to, from, static_cast<uint64_t>(root) * to.bytes));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::scatter(device, address_of(from.data), address_of(recv), count, dtype,
                                 root, stream);
  });
}

Status all_gather_v_on(comm::Comm& c, const void* send, void* recv, Counts counts, Dtype dtype,
                       sys::Stream stream) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t all, coll::blocks_bytes("counts", counts, c.size(), dtype));
  const uint64_t element = braid::dtype_bytes(dtype);
  const Buffer from{"send", send, counts[static_cast<size_t>(c.rank())] * element};
  const Buffer to{"recv", recv, all};
  BRAID_RETURN_IF_ERROR(coll::check_in_place_or_apart(
      from, to, coll::all_gather_steps::block_begin(c.rank(), counts) * element));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::all_gather_v(device, address_of(send), address_of(recv), counts, dtype,
                                      stream);
  });
}

Status reduce_scatter_v_on(comm::Comm& c, const void* send, void* recv, Counts counts, Dtype dtype,
                           RedOp op, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(coll::check_redop(op));
  BRAID_ASSIGN_OR_RETURN(const uint64_t all, coll::blocks_bytes("counts", counts, c.size(), dtype));
  const uint64_t element = braid::dtype_bytes(dtype);
  const Buffer from{"send", send, all};
  const Buffer to{"recv", recv, counts[static_cast<size_t>(c.rank())] * element};
  BRAID_RETURN_IF_ERROR(coll::check_in_place_or_apart(
      to, from, coll::reduce_scatter_steps::block_begin(c.rank(), counts) * element));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::reduce_scatter_v(device, address_of(send), address_of(recv), counts, dtype,
                                          op, stream);
  });
}

}  // namespace

extern "C" {

braid_code braid_reduce(braid_comm* comm, const void* send, void* recv, size_t count,
                        braid_dtype dtype, braid_op op, int root) {
  return on_comm(comm, "braid_reduce", [&](auto& c) {
    return coll::rooted_reduce(c, send, recv, count, to_dtype(dtype), to_op(op), root);
  });
}

braid_code braid_gather(braid_comm* comm, const void* send, void* recv, size_t count,
                        braid_dtype dtype, int root) {
  return on_comm(comm, "braid_gather", [&](auto& c) {
    return coll::gather(c, send, recv, count, to_dtype(dtype), root);
  });
}

braid_code braid_scatter(braid_comm* comm, const void* send, void* recv, size_t count,
                         braid_dtype dtype, int root) {
  return on_comm(comm, "braid_scatter", [&](auto& c) {
    return coll::scatter(c, send, recv, count, to_dtype(dtype), root);
  });
}

braid_code braid_all_gather_v(braid_comm* comm, const void* send, void* recv, const size_t* counts,
                              braid_dtype dtype) {
  return on_comm(comm, "braid_all_gather_v", [&](auto& c) -> Status {
    BRAID_RETURN_IF_ERROR(check_given(counts, c.size()).with_context("braid_all_gather_v"));
    return coll::all_gather_v(c, send, recv, braid::c::counts_of(counts, c.size()),
                              to_dtype(dtype));
  });
}

braid_code braid_reduce_scatter_v(braid_comm* comm, const void* send, void* recv,
                                  const size_t* counts, braid_dtype dtype, braid_op op) {
  return on_comm(comm, "braid_reduce_scatter_v", [&](auto& c) -> Status {
    BRAID_RETURN_IF_ERROR(check_given(counts, c.size()).with_context("braid_reduce_scatter_v"));
    return coll::reduce_scatter_v(c, send, recv, braid::c::counts_of(counts, c.size()),
                                  to_dtype(dtype), to_op(op));
  });
}

braid_code braid_reduce_on(braid_comm* comm, const void* send, void* recv, size_t count,
                           braid_dtype dtype, braid_op op, int root, void* stream) {
  return on_comm(comm, "braid_reduce_on", [&](auto& c) {
    return reduce_on(c, send, recv, count, to_dtype(dtype), to_op(op), root, {stream})
        .with_context("braid_reduce_on");
  });
}

braid_code braid_gather_on(braid_comm* comm, const void* send, void* recv, size_t count,
                           braid_dtype dtype, int root, void* stream) {
  return on_comm(comm, "braid_gather_on", [&](auto& c) {
    return gather_on(c, send, recv, count, to_dtype(dtype), root, {stream})
        .with_context("braid_gather_on");
  });
}

braid_code braid_scatter_on(braid_comm* comm, const void* send, void* recv, size_t count,
                            braid_dtype dtype, int root, void* stream) {
  return on_comm(comm, "braid_scatter_on", [&](auto& c) {
    return scatter_on(c, send, recv, count, to_dtype(dtype), root, {stream})
        .with_context("braid_scatter_on");
  });
}

braid_code braid_all_gather_v_on(braid_comm* comm, const void* send, void* recv,
                                 const size_t* counts, braid_dtype dtype, void* stream) {
  return on_comm(comm, "braid_all_gather_v_on", [&](auto& c) -> Status {
    BRAID_RETURN_IF_ERROR(check_given(counts, c.size()).with_context("braid_all_gather_v_on"));
    return all_gather_v_on(c, send, recv, braid::c::counts_of(counts, c.size()), to_dtype(dtype),
                           {stream})
        .with_context("braid_all_gather_v_on");
  });
}

braid_code braid_reduce_scatter_v_on(braid_comm* comm, const void* send, void* recv,
                                     const size_t* counts, braid_dtype dtype, braid_op op,
                                     void* stream) {
  return on_comm(comm, "braid_reduce_scatter_v_on", [&](auto& c) -> Status {
    BRAID_RETURN_IF_ERROR(check_given(counts, c.size()).with_context("braid_reduce_scatter_v_on"));
    return reduce_scatter_v_on(c, send, recv, braid::c::counts_of(counts, c.size()),
                               to_dtype(dtype), to_op(op), {stream})
        .with_context("braid_reduce_scatter_v_on");
  });
}

}  // extern "C"
