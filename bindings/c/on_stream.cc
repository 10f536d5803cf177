// The C interface on GPU memory: the functions whose names end in _on, and registered memory. As in
// CUDA's own interfaces a call is about the calling thread's current device; that its memory is
// there is looked up, since a kernel that meets another one's ends the context.
#include "base/status.h"
#include "coll/arguments.h"
#include "coll/device/collectives.h"
#include "handle.h"
#include "on_gpu.h"

namespace {

using braid::Status;
using braid::c::address_of;
using braid::c::on_comm;
using braid::c::on_gpu;
using braid::c::to_dtype;
using braid::c::to_op;
using braid::coll::Buffer;
using braid::coll::buffer_bytes;
using braid::coll::check_in_place_or_apart;
namespace coll = braid::coll;
namespace comm = braid::comm;
namespace sys = braid::sys;

uint64_t own_offset(const comm::Comm& c, uint64_t block_bytes) {
  return static_cast<uint64_t>(c.rank()) * block_bytes;
}

Status all_gather(comm::Comm& c, const void* send, void* recv, size_t count, braid::Dtype dtype,
                  sys::Stream stream) {
  const auto size = static_cast<uint64_t>(c.size());
  BRAID_ASSIGN_OR_RETURN(const uint64_t all, buffer_bytes(count, size, dtype));
  const Buffer from{"send", send, all / size}, to{"recv", recv, all};
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart(from, to, own_offset(c, from.bytes)));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::all_gather(device, address_of(send), address_of(recv), count, dtype,
                                    stream);
  });
}

Status all_reduce(comm::Comm& c, const void* send, void* recv, size_t count, braid::Dtype dtype,
                  braid::RedOp op, sys::Stream stream) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(count, 1, dtype));
  BRAID_RETURN_IF_ERROR(coll::check_redop(op));
  const Buffer from{"send", send, bytes}, to{"recv", recv, bytes};
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart(from, to, 0));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::all_reduce(device, address_of(send), address_of(recv), count, dtype, op,
                                    stream);
  });
}

Status reduce_scatter(comm::Comm& c, const void* send, void* recv, size_t count, braid::Dtype dtype,
                      braid::RedOp op, sys::Stream stream) {
  const auto size = static_cast<uint64_t>(c.size());
  BRAID_ASSIGN_OR_RETURN(const uint64_t all, buffer_bytes(count, size, dtype));
  BRAID_RETURN_IF_ERROR(coll::check_redop(op));
  const Buffer from{"send", send, all}, to{"recv", recv, all / size};
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart(to, from, own_offset(c, to.bytes)));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::reduce_scatter(device, address_of(send), address_of(recv), count, dtype,
                                        op, stream);
  });
}

Status all_to_all(comm::Comm& c, const void* send, void* recv, size_t count, braid::Dtype dtype,
                  sys::Stream stream) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t all,
                         buffer_bytes(count, static_cast<uint64_t>(c.size()), dtype));
  const Buffer from{"send", send, all}, to{"recv", recv, all};
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart(from, to, 0));
  return on_gpu(c, {from, to}, [&](comm::Device& device) {
    return coll::device::all_to_all(device, address_of(send), address_of(recv), count, dtype,
                                    stream);
  });
}

Status all_to_all_v(comm::Comm& c, const void* send, std::span<const uint64_t> send_counts,
                    void* recv, std::span<const uint64_t> recv_counts, braid::Dtype dtype,
                    sys::Stream stream) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t send_bytes,
                         coll::blocks_bytes("send_counts", send_counts, c.size(), dtype));
  BRAID_ASSIGN_OR_RETURN(const uint64_t recv_bytes,
                         coll::blocks_bytes("recv_counts", recv_counts, c.size(), dtype));
  return on_gpu(c, {{"send", send, send_bytes}, {"recv", recv, recv_bytes}},
                [&](comm::Device& device) {
                  return coll::device::all_to_all_v(device, address_of(send), send_counts,
                                                    address_of(recv), recv_counts, dtype, stream);
                });
}

Status broadcast(comm::Comm& c, void* buf, size_t count, braid::Dtype dtype, int root,
                 sys::Stream stream) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(count, 1, dtype));
  BRAID_RETURN_IF_ERROR(coll::check_root(root, c.size()));
  return on_gpu(c, {{"buf", buf, bytes}}, [&](comm::Device& device) {
    return coll::device::broadcast(device, address_of(buf), address_of(buf), count, dtype, root,
                                   stream);
  });
}

}  // namespace

extern "C" {

braid_code braid_all_gather_on(braid_comm* comm, const void* send, void* recv, size_t count,
                               braid_dtype dtype, void* stream) {
  return on_comm(comm, "braid_all_gather_on", [&](auto& c) {
    return all_gather(c, send, recv, count, to_dtype(dtype), {stream})
        .with_context("braid_all_gather_on");
  });
}

braid_code braid_all_reduce_on(braid_comm* comm, const void* send, void* recv, size_t count,
                               braid_dtype dtype, braid_op op, void* stream) {
  return on_comm(comm, "braid_all_reduce_on", [&](auto& c) {
    return all_reduce(c, send, recv, count, to_dtype(dtype), to_op(op), {stream})
        .with_context("braid_all_reduce_on");
  });
}

braid_code braid_reduce_scatter_on(braid_comm* comm, const void* send, void* recv, size_t count,
                                   braid_dtype dtype, braid_op op, void* stream) {
  return on_comm(comm, "braid_reduce_scatter_on", [&](auto& c) {
    return reduce_scatter(c, send, recv, count, to_dtype(dtype), to_op(op), {stream})
        .with_context("braid_reduce_scatter_on");
  });
}

braid_code braid_all_to_all_on(braid_comm* comm, const void* send, void* recv, size_t count,
                               braid_dtype dtype, void* stream) {
  return on_comm(comm, "braid_all_to_all_on", [&](auto& c) {
    return all_to_all(c, send, recv, count, to_dtype(dtype), {stream})
        .with_context("braid_all_to_all_on");
  });
}

braid_code braid_all_to_all_v_on(braid_comm* comm, const void* send, const size_t* send_counts,
                                 void* recv, const size_t* recv_counts, braid_dtype dtype,
                                 void* stream) {
  return on_comm(comm, "braid_all_to_all_v_on", [&](auto& c) -> Status {
    BRAID_RETURN_IF_ERROR(
        braid::c::check_counts("braid_all_to_all_v_on", send_counts, recv_counts, c.size()));
    return all_to_all_v(c, send, braid::c::counts_of(send_counts, c.size()), recv,
                        braid::c::counts_of(recv_counts, c.size()), to_dtype(dtype), {stream})
        .with_context("braid_all_to_all_v_on");
  });
}

braid_code braid_broadcast_on(braid_comm* comm, void* buf, size_t count, braid_dtype dtype,
                              int root, void* stream) {
  return on_comm(comm, "braid_broadcast_on", [&](auto& c) {
    return broadcast(c, buf, count, to_dtype(dtype), root, {stream})
        .with_context("braid_broadcast_on");
  });
}

braid_code braid_barrier_on(braid_comm* comm, void* stream) {
  return on_comm(comm, "braid_barrier_on", [&](auto& c) {
    return on_gpu(c, {},
                  [&](comm::Device& device) {
                    return coll::device::barrier(device, sys::Stream{stream});
                  })
        .with_context("braid_barrier_on");
  });
}

// What is wrong with the memory is told to all ranks, which are on their way to share it.
braid_code braid_register(braid_comm* comm, void* memory, size_t bytes) {
  return on_comm(comm, "braid_register", [&](auto& c) {
    return on_gpu(c, {},
                  [&](comm::Device& device) {
                    return device.registrations().add(address_of(memory), bytes);
                  })
        .with_context("braid_register");
  });
}

braid_code braid_unregister(braid_comm* comm, void* memory) {
  return on_comm(comm, "braid_unregister", [&](auto& c) {
    return on_gpu(c, {},
                  [&](comm::Device& device) {
                    return device.registrations().remove(address_of(memory));
                  })
        .with_context("braid_unregister");
  });
}

}  // extern "C"
