#include "coll/arguments.h"
#include "coll/gather/gather.h"
#include "coll/gather/steps.h"
#include "coll/host/call.h"

namespace braid::coll {

namespace {

Status check(const comm::Comm& comm, const Buffer& send, const Buffer& recv, int root) {
  BRAID_RETURN_IF_ERROR(check_buffer(send));
  if (comm.rank() != root) return {};
  BRAID_RETURN_IF_ERROR(check_buffer(recv));
  return check_in_place_or_apart(send, recv, gather_steps::block_offset(root, send.bytes));
}

}  // namespace

Status gather(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
              int root) {
  const int n = comm.size();
  BRAID_RETURN_IF_ERROR(check_root(root, n).with_context("gather"));
  BRAID_ASSIGN_OR_RETURN(const uint64_t total,
                         buffer_bytes(count, static_cast<uint64_t>(n), dtype));
  const uint64_t block = total / static_cast<uint64_t>(n);
  BRAID_RETURN_IF_ERROR(
      check(comm, {"send", send, block}, {"recv", recv, total}, root).with_context("gather"));

  Moves moves;
  moves.signature = {plan::Op::kAllGather,        Form::kRooted, dtype, RedOp::kSum,
                     static_cast<uint32_t>(root), count};
  moves.bytes = total;
  moves.parts.resize(static_cast<size_t>(n));
  moves.parts[static_cast<size_t>(root)] = {bytes_at(send, 0), block};
  if (comm.rank() != root) return run(comm, moves);
  for (int r = 0; r < n; ++r)
    moves.places.push_back({bytes_at(recv, gather_steps::block_offset(r, block)), block});
  return run(comm, moves);
}

}  // namespace braid::coll
