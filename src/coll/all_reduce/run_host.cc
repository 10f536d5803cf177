#include "coll/all_reduce/all_reduce.h"
#include "coll/all_reduce/steps.h"
#include "coll/arguments.h"
#include "coll/host/call.h"

namespace braid::coll {

Status all_reduce(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                  RedOp op) {
  const int n = comm.size();
  BRAID_RETURN_IF_ERROR(check_redop(op).with_context("all_reduce"));
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(count, 1, dtype));
  BRAID_RETURN_IF_ERROR(check_buffer({"send", send, bytes}).with_context("all_reduce"));
  BRAID_RETURN_IF_ERROR(check_buffer({"recv", recv, bytes}).with_context("all_reduce"));
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart({"send", send, bytes}, {"recv", recv, bytes}, 0)
                            .with_context("all_reduce"));

  Moves moves;
  moves.signature.op = plan::Op::kAllReduce;
  moves.signature.dtype = dtype;
  moves.signature.redop = op;
  moves.signature.count = count;
  moves.bytes = bytes;
  moves.parts_are_operands = true;
  moves.reduced_for = transport::PeerSet::all_but(comm.rank(), n);
  const uint64_t element = dtype_bytes(dtype);
  for (int r = 0; r < n; ++r) {
    const uint64_t offset = all_reduce_steps::block_begin(r, n, count) * element;
    const uint64_t length = all_reduce_steps::block_count(r, n, count) * element;
    moves.parts.push_back({bytes_at(send, offset), length});
    moves.places.push_back({bytes_at(recv, offset), length});
  }
  moves.reduced = moves.places[static_cast<size_t>(comm.rank())];
  return run(comm, moves);
}

}  // namespace braid::coll
