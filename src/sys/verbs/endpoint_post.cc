#include <arpa/inet.h>

#include "sys/verbs/endpoint.h"

namespace braid::sys::verbs {

Status Endpoint::check_usable(uint64_t peer) const {
  if (!is_connected_ || peer != 0)
    return domain_.named(invalid_argument("peer {} was not added", peer));
  if (broken_)
    return domain_.named(peer_lost("the connection is broken: {}", words_of(library_, *broken_)));
  return {};
}

// A NIC would find this out, too, and break the connection for it.
Status Endpoint::check_local(const FabricRegion* region, const std::byte* memory,
                             size_t bytes) const {
  if (region != nullptr && static_cast<const Region*>(region)->holds(memory, bytes)) return {};
  return domain_.named(invalid_argument("{} bytes at {} are not in the region that was named",
                                        bytes, static_cast<const void*>(memory)));
}

Result<bool> Endpoint::write(const FabricTransfer& transfer, FabricOp* op) {
  return hold(transfer, op, transfer.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
}

Result<bool> Endpoint::read(const FabricTransfer& transfer, FabricOp* op) {
  if (!domain_.limits().can_read)
    return domain_.named(unsupported("the device reads nothing from peers"));
  return hold(transfer, op, IBV_WR_RDMA_READ);
}

Result<bool> Endpoint::hold(const FabricTransfer& transfer, FabricOp* op, ibv_wr_opcode opcode) {
  BRAID_RETURN_IF_ERROR(check_usable(transfer.peer));
  BRAID_RETURN_IF_ERROR(check_local(transfer.local_region, transfer.local, transfer.bytes));
  if (transfer.bytes > domain_.limits().max_write_bytes)
    return domain_.named(invalid_argument("{} bytes at once asked for, {} is the limit",
                                          transfer.bytes, domain_.limits().max_write_bytes));
  if (!transfer_credits_.take()) return false;
  const auto* region = static_cast<const Region*>(transfer.local_region);
  ibv_send_wr& request = held_.requests[held_.size];
  ibv_sge& memory = held_.memory[held_.size];
  memory = {reinterpret_cast<uint64_t>(transfer.local), static_cast<uint32_t>(transfer.bytes),
            region->local_key()};
  request = {};
  request.wr_id = work_id(op, Work::kTransfer);
  request.sg_list = &memory;
  request.num_sge = transfer.bytes > 0 ? 1 : 0;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  // The processor copies what is inline, and it cannot read a GPU's memory.
  if (opcode != IBV_WR_RDMA_READ && transfer.bytes <= data_.inline_bytes() && region->is_host())
    request.send_flags |= IBV_SEND_INLINE;
  request.imm_data = htonl(transfer.immediate.value_or(0));
  request.wr.rdma = {transfer.remote_address, static_cast<uint32_t>(transfer.remote_key)};
  ++held_.size;
  if (!transfer.has_more || held_.size == kChain) post_held();
  return true;
}

void Endpoint::post_held() {
  if (held_.size == 0) return;
  for (size_t i = 0; i < held_.size; ++i)
    held_.requests[i].next = i + 1 < held_.size ? &held_.requests[i + 1] : nullptr;
  progress_ += held_.size;
  ibv_send_wr* first_refused = nullptr;
  const int error = data_.post(held_.requests.data(), &first_refused);
  if (error != 0) refuse_held(first_refused, error);
  held_.size = 0;
}

// Their callers were told that they are posted, so each of them fails by an event.
void Endpoint::refuse_held(const ibv_send_wr* first, int error) {
  const Failure failure = Failure::of_errno(error);
  for (; first != nullptr; first = first->next) {
    transfer_credits_.give();
    owed_.push_back(failed_event(operation_of(first->wr_id), failure));
  }
  break_off_untold(failure);
}

Result<bool> Endpoint::send(const FabricMessage& message, FabricOp* op) {
  BRAID_RETURN_IF_ERROR(check_usable(message.peer));
  BRAID_RETURN_IF_ERROR(check_local(message.region, message.memory, message.bytes));
  if (!send_credits_.take()) return false;
  ibv_sge memory{reinterpret_cast<uint64_t>(message.memory), static_cast<uint32_t>(message.bytes),
                 static_cast<const Region*>(message.region)->local_key()};
  ibv_send_wr request{};
  request.wr_id = work_id(op, Work::kSend);
  request.sg_list = &memory;
  request.num_sge = message.bytes > 0 ? 1 : 0;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ++progress_;
  ibv_send_wr* refused = nullptr;
  const int error = messages_.post(&request, &refused);
  if (error == 0) return true;
  send_credits_.give();
  break_off_untold(Failure::of_errno(error));
  return check_usable(message.peer);
}

Result<bool> Endpoint::receive(const FabricMessage& message, FabricOp* op) {
  // Before the peer is there, too: what it sends first must find a receive.
  if (broken_) return check_usable(0);
  BRAID_RETURN_IF_ERROR(check_local(message.region, message.memory, message.bytes));
  if (!receive_credits_.take()) return false;
  ibv_sge memory{reinterpret_cast<uint64_t>(message.memory), static_cast<uint32_t>(message.bytes),
                 static_cast<const Region*>(message.region)->local_key()};
  ibv_recv_wr request{work_id(op, Work::kReceive), nullptr, &memory, message.bytes > 0 ? 1 : 0};
  ibv_recv_wr* refused = nullptr;
  const int error = messages_.post(&request, &refused);
  if (error == 0) return true;
  receive_credits_.give();
  break_off_untold(Failure::of_errno(error));
  return check_usable(0);
}

// Receives without memory: what an immediate takes. One that is used up is offered anew at once,
// so the peer finds as many as it was told, less what nobody has polled yet.
void Endpoint::offer_immediates(uint32_t count) {
  std::array<ibv_recv_wr, 32> requests{};
  while (count > 0 && !broken_) {
    const uint32_t batch = std::min<uint32_t>(count, requests.size());
    for (uint32_t i = 0; i < batch; ++i) {
      requests[i].wr_id = work_id(nullptr, Work::kImmediate);
      requests[i].next = i + 1 < batch ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* refused = nullptr;
    if (const int error = data_.post(requests.data(), &refused); error != 0)
      break_off(Failure::of_errno(error));
    count -= batch;
  }
}

}  // namespace braid::sys::verbs
