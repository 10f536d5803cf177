// CallNote: what is known of one call of a comm, for traces, flight records and counts.
//
// Times are now_ns(): comparable between processes of one machine.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "plan/plan.h"

namespace braid::comm {

/// What all ranks must have alike, and the numbers of elements on this one.
struct CallShape {
  plan::Op op = plan::Op::kAllGather;
  bool is_barrier = false;
  Dtype dtype = Dtype::kUint8;
  RedOp redop = RedOp::kSum;
  int root = 0;
  uint64_t count = 0;                       // as the operation's function counts
  uint64_t bytes = 0;                       // as plan::Request counts
  uint64_t send_count = 0, recv_count = 0;  // elements of the whole buffers
  const char* name = nullptr;  // of a call that goes as another operation does: "gather"
  bool is_uneven = false;      // blocks are not of one length
};

/// `bytes` and whole buffers from the rest, for `size` ranks and equal blocks.
CallShape with_buffers(CallShape shape, int size);

/// "all_reduce", "barrier".
const char* name_of(const CallShape& shape);
/// Whether it has an operator: all_reduce and reduce_scatter.
bool is_reduction(const CallShape& shape);
/// What all ranks must have alike, in words: "all_reduce float32 sum 64.0 MiB".
std::string words_of(const CallShape& shape);

enum class CallState : uint8_t {
  kScheduled,  // on a GPU: enqueued, its stream has not come to it
  kStarted,
  kCompleted,
  kFailed,
};

/// What one link did in a call, as this rank saw it.
struct LinkNote {
  int link = 0;        // an index of CommFacts::links
  uint32_t parts = 0;  // its share, in plan::kWhole
  uint64_t sent_bytes = 0, received_bytes = 0;
  int64_t finish_ns = 0;  // after the call's start; 0: not known
};

struct CallNote {
  uint64_t number = 0;  // counts the comm's calls from 1; alike on all ranks
  CallShape shape;
  bool on_gpu = false;
  bool is_captured = false;  // in a CUDA graph: it may run many times, or never
  const char* path = "";     // how it went: "lanes", "packets", "copy engines"
  uint64_t stream = 0;       // the caller's CUDA stream
  int64_t begin_ns = 0;      // the caller's thread entered
  int64_t end_ns = 0;        // and left; 0: is inside
  int64_t gpu_begin_ns = 0;  // the stream came to it; 0: not known
  int64_t gpu_end_ns = 0;    // and was done with it
  CallState state = CallState::kStarted;
  Code code = Code::kOk;  // why it failed
  std::vector<LinkNote> links;

  /// How long it took: on the GPU where that is known; 0 when it is not.
  int64_t duration_ns() const {
    if (on_gpu) return gpu_end_ns > gpu_begin_ns ? gpu_end_ns - gpu_begin_ns : 0;
    return state == CallState::kCompleted ? end_ns - begin_ns : 0;
  }
};

}  // namespace braid::comm
