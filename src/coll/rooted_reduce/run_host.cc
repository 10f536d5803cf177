// Every rank reduces one block, as in all_reduce, and sends it to root alone: the work is shared,
// and root receives twice (size - 1) / size of the buffer instead of size - 1 buffers.
#include <algorithm>
#include <memory>
#include <new>

#include "coll/all_reduce/steps.h"
#include "coll/arguments.h"
#include "coll/host/call.h"
#include "coll/rooted_reduce/rooted_reduce.h"

namespace braid::coll {

namespace {

Status check(const comm::Comm& comm, const Buffer& send, const Buffer& recv, RedOp op, int root) {
  BRAID_RETURN_IF_ERROR(check_redop(op));
  BRAID_RETURN_IF_ERROR(check_root(root, comm.size()));
  BRAID_RETURN_IF_ERROR(check_buffer(send));
  if (comm.rank() != root) return {};
  BRAID_RETURN_IF_ERROR(check_buffer(recv));
  return check_in_place_or_apart(send, recv, 0);
}

}  // namespace

Status rooted_reduce(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                     RedOp op, int root) {
  const int n = comm.size();
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(count, 1, dtype));
  BRAID_RETURN_IF_ERROR(
      check(comm, {"send", send, bytes}, {"recv", recv, bytes}, op, root).with_context("reduce"));

  Moves moves;
  moves.signature = {plan::Op::kAllReduce,        Form::kRooted, dtype, op,
                     static_cast<uint32_t>(root), count};
  moves.bytes = bytes;
  moves.parts_are_operands = true;
  const uint64_t element = dtype_bytes(dtype);
  const auto offset = [&](int r) { return all_reduce_steps::block_begin(r, n, count) * element; };
  const auto length = [&](int r) { return all_reduce_steps::block_count(r, n, count) * element; };
  for (int r = 0; r < n; ++r) moves.parts.push_back({bytes_at(send, offset(r)), length(r)});
  const uint64_t own = length(comm.rank());
  if (comm.rank() == root) {
    for (int r = 0; r < n; ++r) moves.places.push_back({bytes_at(recv, offset(r)), length(r)});
    moves.reduced = moves.places[static_cast<size_t>(root)];
    return run(comm, moves);
  }
  const std::unique_ptr<std::byte[]> block(new (std::nothrow) std::byte[own]);
  if (!block) return end_without_memory(comm, moves.signature, own);
  moves.reduced = {block.get(), own};
  moves.reduced_for = transport::PeerSet::only(root);
  return run(comm, moves);
}

}  // namespace braid::coll
