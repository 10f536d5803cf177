// The tiles there are kernels for, and what a call may choose.
#pragma once

#include <array>
#include <cstdint>

#include "overlap/gemm.h"

namespace braid::overlap {

/// Rows x columns of a tile and where the cluster's second block is.
enum class Form : int32_t {
  k256Below = 0,   // 128 x 256, the other tile below: they share the weights
  k256Beside = 1,  // 128 x 256, beside: they share the activations
  k128Beside = 2,  // 128 x 128
  k256Across = 3,  // k256Below, whose second tile is of the next shard: shards of one tile's rows
};
inline constexpr std::array<Form, 4> kAllForms{Form::k256Below, Form::k256Beside, Form::k128Beside,
                                               Form::k256Across};

constexpr Shape shape_of(Form form) {
  switch (form) {
    case Form::k256Below: return {128, 256, 2, 1};
    case Form::k256Beside: return {128, 256, 1, 2};
    case Form::k256Across: return {128, 256, 2, 1, 2};
    case Form::k128Beside: break;
  }
  return {128, 128, 1, 2};
}
constexpr bool has_kernel(Op op, Form form) {
  return op != Op::kExchange || form == Form::k128Beside;
}

/// What the tuner decides, alike on all ranks.
struct Choice {
  Form form = Form::k256Below;
  int32_t band = 8;         // rows of units that share the weights' way through the L2
  int32_t head = 0;         // gather: rows of units ahead of a border between bands
  int32_t num_blocks = 0;   // 0: one for every multiprocessor
  int32_t piece_rows = 0;   // gather: of what is pushed and told of at a time; 0: a whole shard
  bool by_engines = true;   // scatter: copy engines push batches; else the kernel, tile by tile
  int32_t batches = 1;      // scatter by engines: of a shard's parts
  int32_t batch_tiles = 0;  // of a batch; 0: as many as make `batches`
  bool splits = true;       // cuts tiles along K that make no full round, where that saves time
};

/// The GPUs whose instructions the kernels are made of.
constexpr bool runs_on(int compute_major, int compute_minor) {
  return compute_major == 9 && compute_minor == 0;
}

}  // namespace braid::overlap
