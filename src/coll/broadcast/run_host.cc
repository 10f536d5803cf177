#include "coll/arguments.h"
#include "coll/broadcast/broadcast.h"
#include "coll/host/call.h"

namespace braid::coll {

Status broadcast(comm::Comm& comm, void* buf, uint64_t count, Dtype dtype, int root) {
  const int n = comm.size();
  BRAID_RETURN_IF_ERROR(check_root(root, n).with_context("broadcast"));
  BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(count, 1, dtype));
  BRAID_RETURN_IF_ERROR(check_buffer({"buf", buf, bytes}).with_context("broadcast"));

  Moves moves;
  moves.signature.op = plan::Op::kBroadcast;
  moves.signature.dtype = dtype;
  moves.signature.root = static_cast<uint32_t>(root);
  moves.signature.count = count;
  moves.bytes = bytes;
  moves.places.resize(static_cast<size_t>(n));
  if (comm.rank() == root)
    moves.mine = {bytes_at(buf, 0), bytes};
  else
    moves.places[static_cast<size_t>(root)] = {bytes_at(buf, 0), bytes};
  return run(comm, moves);
}

Status barrier(comm::Comm& comm) {
  Moves moves;
  moves.signature.op = plan::Op::kBroadcast;
  moves.signature.form = Form::kBarrier;
  return run(comm, moves);
}

}  // namespace braid::coll
