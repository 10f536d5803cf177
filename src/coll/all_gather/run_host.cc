#include "coll/all_gather/all_gather.h"
#include "coll/all_gather/steps.h"
#include "coll/arguments.h"
#include "coll/host/call.h"

namespace braid::coll {

Status all_gather(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype) {
  const int n = comm.size();
  BRAID_ASSIGN_OR_RETURN(const uint64_t total,
                         buffer_bytes(count, static_cast<uint64_t>(n), dtype));
  const uint64_t block = total / static_cast<uint64_t>(n);
  BRAID_RETURN_IF_ERROR(check_buffer({"send", send, block}).with_context("all_gather"));
  BRAID_RETURN_IF_ERROR(check_buffer({"recv", recv, total}).with_context("all_gather"));
  BRAID_RETURN_IF_ERROR(check_in_place_or_apart({"send", send, block}, {"recv", recv, total},
                                                all_gather_steps::block_offset(comm.rank(), block))
                            .with_context("all_gather"));

  Moves moves;
  moves.signature.op = plan::Op::kAllGather;
  moves.signature.dtype = dtype;
  moves.signature.count = count;
  moves.bytes = total;
  moves.mine = {bytes_at(send, 0), block};
  for (int r = 0; r < n; ++r)
    moves.places.push_back({bytes_at(recv, all_gather_steps::block_offset(r, block)), block});
  return run(comm, moves);
}

}  // namespace braid::coll
