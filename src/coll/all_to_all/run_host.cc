#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "coll/all_to_all/all_to_all.h"
#include "coll/all_to_all/steps.h"
#include "coll/arguments.h"
#include "coll/host/call.h"

namespace braid::coll {

namespace {

// Runs with send and recv apart: in place, the blocks that arrive would overwrite the ones still to
// be sent.
Status run_apart(comm::Comm& comm, Moves& moves, const void* send, void* recv, uint64_t bytes) {
  if (send != recv || bytes == 0) return run(comm, moves);
  const std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (!copy) return end_without_memory(comm, moves.signature, bytes);
  std::memcpy(copy.get(), send, bytes);
  for (ConstBlock& part : moves.parts)
    part.data = copy.get() + (part.data - static_cast<const std::byte*>(send));
  return run(comm, moves);
}

}  // namespace

Status all_to_all(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                  BitOp bit_op) {
  const int n = comm.size();
  BRAID_ASSIGN_OR_RETURN(const uint64_t total,
                         buffer_bytes(count, static_cast<uint64_t>(n), dtype));
  const uint64_t block = total / static_cast<uint64_t>(n);
  BRAID_RETURN_IF_ERROR(check_buffer({"send", send, total}).with_context("all_to_all"));
  BRAID_RETURN_IF_ERROR(check_buffer({"recv", recv, total}).with_context("all_to_all"));
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart({"send", send, total}, {"recv", recv, total}, 0)
                            .with_context("all_to_all"));

  Moves moves;
  moves.signature.op = plan::Op::kAllToAll;
  moves.signature.dtype = dtype;
  moves.signature.count = count;
  moves.signature.bit_op = bit_op;
  moves.bytes = total;
  for (int r = 0; r < n; ++r) {
    moves.parts.push_back({bytes_at(send, all_to_all_steps::block_offset(r, block)), block});
    moves.places.push_back({bytes_at(recv, all_to_all_steps::block_offset(r, block)), block});
  }
  return run_apart(comm, moves, send, recv, total);
}

Status all_to_all_v(comm::Comm& comm, const void* send, std::span<const uint64_t> send_counts,
                    void* recv, std::span<const uint64_t> recv_counts, Dtype dtype) {
  const int n = comm.size();
  BRAID_ASSIGN_OR_RETURN(const uint64_t send_bytes,
                         blocks_bytes("send_counts", send_counts, n, dtype));
  BRAID_ASSIGN_OR_RETURN(const uint64_t recv_bytes,
                         blocks_bytes("recv_counts", recv_counts, n, dtype));
  BRAID_RETURN_IF_ERROR(check_buffer({"send", send, send_bytes}).with_context("all_to_all"));
  BRAID_RETURN_IF_ERROR(check_buffer({"recv", recv, recv_bytes}).with_context("all_to_all"));
  BRAID_RETURN_IF_ERROR(check_disjoint({"send", send, send_bytes}, {"recv", recv, recv_bytes})
                            .with_context("all_to_all"));

  Moves moves;
  moves.signature.op = plan::Op::kAllToAll;
  moves.signature.form = Form::kUneven;
  moves.signature.dtype = dtype;
  moves.send_counts.assign(send_counts.begin(), send_counts.end());
  moves.recv_counts.assign(recv_counts.begin(), recv_counts.end());
  moves.bytes = send_bytes;
  const uint64_t element = dtype_bytes(dtype);
  for (int r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    moves.parts.push_back({bytes_at(send, all_to_all_steps::block_begin(r, send_counts) * element),
                           send_counts[i] * element});
    moves.places.push_back({bytes_at(recv, all_to_all_steps::block_begin(r, recv_counts) * element),
                            recv_counts[i] * element});
  }
  return run(comm, moves);
}

}  // namespace braid::coll
