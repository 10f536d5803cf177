// The C interface: messages between two ranks, of host and of GPU memory.
#include "coll/messages/messages.h"

#include "coll/messages/exchange.h"
#include "coll/messages/on_gpu.h"
#include "handle.h"
#include "on_gpu.h"

namespace {

using braid::Status;
using braid::c::on_comm;
using braid::c::to_dtype;
using braid::coll::Message;

constexpr Message::Way kSend = Message::Way::kSend, kRecv = Message::Way::kRecv;

Message sent(const void* data, size_t count, braid_dtype dtype, int peer) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): a message that is sent is only read
  return {kSend, peer, const_cast<void*>(data), count, to_dtype(dtype)};
}

Status on_gpu(braid::comm::Comm& comm, const Message& message, void* stream) {
  BRAID_RETURN_IF_ERROR(braid::coll::check_message(comm, message));
  braid::sys::Cuda& cuda = braid::c::cuda_of(comm);
  BRAID_ASSIGN_OR_RETURN(const int gpu, braid::c::current_gpu(cuda));
  const uint64_t bytes = message.count * braid::dtype_bytes(message.dtype);
  BRAID_RETURN_IF_ERROR(braid::c::check_on_gpu(cuda, gpu, {"data", message.data, bytes}));
  return braid::coll::device::exchange_one(comm, cuda, gpu, message, {stream});
}

}  // namespace

extern "C" {

braid_code braid_send(braid_comm* comm, const void* data, size_t count, braid_dtype dtype,
                      int peer) {
  return on_comm(comm, "braid_send",
                 [&](auto& c) { return braid::coll::send(c, data, count, to_dtype(dtype), peer); });
}

braid_code braid_recv(braid_comm* comm, void* data, size_t count, braid_dtype dtype, int peer) {
  return on_comm(comm, "braid_recv",
                 [&](auto& c) { return braid::coll::recv(c, data, count, to_dtype(dtype), peer); });
}

braid_code braid_send_recv(braid_comm* comm, const void* send, size_t send_count, int to,
                           void* recv, size_t recv_count, int from, braid_dtype dtype) {
  return on_comm(comm, "braid_send_recv", [&](auto& c) {
    const Message both[] = {sent(send, send_count, dtype, to),
                            {kRecv, from, recv, recv_count, to_dtype(dtype)}};
    return braid::coll::exchange(c, both);
  });
}

braid_code braid_send_on(braid_comm* comm, const void* data, size_t count, braid_dtype dtype,
                         int peer, void* stream) {
  return on_comm(comm, "braid_send_on", [&](auto& c) {
    return on_gpu(c, sent(data, count, dtype, peer), stream).with_context("braid_send_on");
  });
}

braid_code braid_recv_on(braid_comm* comm, void* data, size_t count, braid_dtype dtype, int peer,
                         void* stream) {
  return on_comm(comm, "braid_recv_on", [&](auto& c) {
    return on_gpu(c, {kRecv, peer, data, count, to_dtype(dtype)}, stream)
        .with_context("braid_recv_on");
  });
}

}  // extern "C"
