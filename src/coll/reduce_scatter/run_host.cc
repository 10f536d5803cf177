#include "coll/arguments.h"
#include "coll/host/call.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/reduce_scatter/steps.h"

namespace braid::coll {

Status reduce_scatter(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                      RedOp op) {
  const int n = comm.size();
  BRAID_RETURN_IF_ERROR(check_redop(op).with_context("reduce_scatter"));
  BRAID_ASSIGN_OR_RETURN(const uint64_t total,
                         buffer_bytes(count, static_cast<uint64_t>(n), dtype));
  const uint64_t block = total / static_cast<uint64_t>(n);
  BRAID_RETURN_IF_ERROR(check_buffer({"send", send, total}).with_context("reduce_scatter"));
  BRAID_RETURN_IF_ERROR(check_buffer({"recv", recv, block}).with_context("reduce_scatter"));
  const uint64_t own_offset = reduce_scatter_steps::block_offset(comm.rank(), block);
  BRAID_RETURN_IF_ERROR(
      check_in_place_or_apart({"recv", recv, block}, {"send", send, total}, own_offset)
          .with_context("reduce_scatter"));

  Moves moves;
  moves.signature.op = plan::Op::kReduceScatter;
  moves.signature.dtype = dtype;
  moves.signature.redop = op;
  moves.signature.count = count;
  moves.bytes = total;
  moves.parts_are_operands = true;
  for (int r = 0; r < n; ++r)
    moves.parts.push_back({bytes_at(send, reduce_scatter_steps::block_offset(r, block)), block});
  moves.reduced = {bytes_at(recv, 0), block};
  return run(comm, moves);
}

Status reduce_scatter_v(comm::Comm& comm, const void* send, void* recv,
                        std::span<const uint64_t> counts, Dtype dtype, RedOp op) {
  BRAID_RETURN_IF_ERROR(check_redop(op).with_context("reduce_scatter"));
  BRAID_ASSIGN_OR_RETURN(const uint64_t total, blocks_bytes("counts", counts, comm.size(), dtype));
  const uint64_t element = dtype_bytes(dtype);
  const auto offset = [&](int r) { return reduce_scatter_steps::block_begin(r, counts) * element; };
  const Buffer whole{"send", send, total};
  const Buffer own{"recv", recv, counts[static_cast<size_t>(comm.rank())] * element};
  BRAID_RETURN_IF_ERROR(check_buffer(whole).with_context("reduce_scatter"));
  BRAID_RETURN_IF_ERROR(check_buffer(own).with_context("reduce_scatter"));
  BRAID_RETURN_IF_ERROR(
      check_in_place_or_apart(own, whole, offset(comm.rank())).with_context("reduce_scatter"));

  Moves moves;
  moves.signature.op = plan::Op::kReduceScatter;
  moves.signature.form = Form::kUneven;
  moves.signature.dtype = dtype;
  moves.signature.redop = op;
  moves.send_counts.assign(counts.begin(), counts.end());
  moves.bytes = total;
  moves.parts_are_operands = true;
  for (int r = 0; r < comm.size(); ++r)
    moves.parts.push_back({bytes_at(send, offset(r)), counts[static_cast<size_t>(r)] * element});
  moves.reduced = {bytes_at(recv, 0), own.bytes};
  return run(comm, moves);
}

}  // namespace braid::coll
