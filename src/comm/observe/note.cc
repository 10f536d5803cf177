#include "comm/observe/note.h"

#include "base/units.h"

namespace braid::comm {

CallShape with_buffers(CallShape shape, int size) {
  const auto n = static_cast<uint64_t>(size);
  const uint64_t one = shape.count, all = shape.count * n;
  shape.send_count = shape.recv_count = one;
  if (shape.op == plan::Op::kAllGather || shape.op == plan::Op::kAllToAll) shape.recv_count = all;
  if (shape.op == plan::Op::kReduceScatter || shape.op == plan::Op::kAllToAll)
    shape.send_count = all;
  shape.bytes = (plan::is_one_buffer(shape.op) ? one : all) * dtype_bytes(shape.dtype);
  return shape;
}

const char* name_of(const CallShape& shape) {
  if (shape.name != nullptr) return shape.name;
  return shape.is_barrier ? "barrier" : plan::op_name(shape.op);
}

bool is_reduction(const CallShape& shape) {
  return shape.op == plan::Op::kAllReduce || shape.op == plan::Op::kReduceScatter;
}

std::string words_of(const CallShape& shape) {
  if (shape.is_barrier) return "barrier";
  return fmt::format("{} {}{}{} {}", name_of(shape), dtype_name(shape.dtype),
                     is_reduction(shape) ? " " : "",
                     is_reduction(shape) ? redop_name(shape.redop) : "", format_bytes(shape.bytes));
}

}  // namespace braid::comm
