#include "comm/observe/note.h"

#include <gtest/gtest.h>

namespace braid::comm {
namespace {

using plan::Op;

CallShape shape_of(Op op, uint64_t count) {
  return with_buffers({op, false, Dtype::kInt16, RedOp::kMax, 2, count}, 3);
}

TEST(CallShape, KnowsWholeBuffers) {
  struct Case {
    Op op;
    uint64_t send, recv, bytes;
  };
  for (const Case& c : {Case{Op::kAllGather, 10, 30, 60}, Case{Op::kAllReduce, 10, 10, 20},
                        Case{Op::kReduceScatter, 30, 10, 60}, Case{Op::kAllToAll, 30, 30, 60},
                        Case{Op::kBroadcast, 10, 10, 20}}) {
    const CallShape shape = shape_of(c.op, 10);
    EXPECT_EQ(shape.send_count, c.send) << plan::op_name(c.op);
    EXPECT_EQ(shape.recv_count, c.recv) << plan::op_name(c.op);
    EXPECT_EQ(shape.bytes, c.bytes) << plan::op_name(c.op);
  }
}

TEST(CallShape, HasWords) {
  EXPECT_EQ(words_of(shape_of(Op::kReduceScatter, 512)), "reduce_scatter int16 max 3 KiB");
  EXPECT_EQ(words_of(shape_of(Op::kAllGather, 1)), "all_gather int16 6 B");
  EXPECT_EQ(words_of({Op::kBroadcast, true}), "barrier");
}

TEST(CallNote, TakesAsLongAsIsKnown) {
  CallNote note;
  note.begin_ns = 100;
  note.end_ns = 350;
  EXPECT_EQ(note.duration_ns(), 0);  // under way
  note.state = CallState::kCompleted;
  EXPECT_EQ(note.duration_ns(), 250);
  note.state = CallState::kFailed;
  EXPECT_EQ(note.duration_ns(), 0);
  note.on_gpu = true;
  note.state = CallState::kCompleted;
  note.gpu_begin_ns = 400;
  EXPECT_EQ(note.duration_ns(), 0);
  note.gpu_end_ns = 420;
  EXPECT_EQ(note.duration_ns(), 20);
}

}  // namespace
}  // namespace braid::comm
