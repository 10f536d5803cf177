// The five collectives. A header of its own, for kernels are told of them, too.
#pragma once

#include <cstdint>

namespace braid::plan {

enum class Op : uint8_t {
  kAllGather = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllToAll = 3,
  kBroadcast = 4
};
inline constexpr int kNumOps = 5;
inline constexpr Op kAllOps[] = {Op::kAllGather, Op::kAllReduce, Op::kReduceScatter, Op::kAllToAll,
                                 Op::kBroadcast};

/// Whether a message is one buffer; else it is a block per rank.
constexpr bool is_one_buffer(Op op) { return op == Op::kAllReduce || op == Op::kBroadcast; }

}  // namespace braid::plan
