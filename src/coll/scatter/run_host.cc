#include "coll/arguments.h"
#include "coll/host/call.h"
#include "coll/scatter/scatter.h"
#include "coll/scatter/steps.h"

namespace braid::coll {

namespace {

Status check(const comm::Comm& comm, const Buffer& send, const Buffer& recv, int root) {
  BRAID_RETURN_IF_ERROR(check_buffer(recv));
  if (comm.rank() != root) return {};
  BRAID_RETURN_IF_ERROR(check_buffer(send));
  return check_in_place_or_apart(recv, send, scatter_steps::block_offset(root, recv.bytes));
}

}  // namespace

Status scatter(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
               int root) {
  const int n = comm.size();
  BRAID_RETURN_IF_ERROR(check_root(root, n).with_context("scatter"));
  BRAID_ASSIGN_OR_RETURN(const uint64_t total,
                         buffer_bytes(count, static_cast<uint64_t>(n), dtype));
  const uint64_t block = total / static_cast<uint64_t>(n);
  BRAID_RETURN_IF_ERROR(
      check(comm, {"send", send, total}, {"recv", recv, block}, root).with_context("scatter"));

  Moves moves;
  moves.signature = {plan::Op::kAllToAll,         Form::kRooted, dtype, RedOp::kSum,
                     static_cast<uint32_t>(root), count};
  moves.bytes = total;
  if (comm.rank() == root)
    for (int r = 0; r < n; ++r)
      moves.parts.push_back({bytes_at(send, scatter_steps::block_offset(r, block)), block});
  moves.places.resize(static_cast<size_t>(n));
  moves.places[static_cast<size_t>(root)] = {bytes_at(recv, 0), block};
  return run(comm, moves);
}

}  // namespace braid::coll
