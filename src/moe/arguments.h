// Arguments of the calls of a buffer, and what one rank can know of them alone: it is answered
// before anything is sent, so a caller may correct the call and make it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "moe/copy_table.h"
#include "moe/formats.h"
#include "moe/layout.h"

namespace braid::moe {

/// Shapes: x [T, hidden], ids [T, K]; all contiguous, host memory.
struct LowLatencyDispatch {
  const std::byte* x = nullptr;
  Dtype dtype = Dtype::kBfloat16;  // with a cast: a summable type
  uint64_t hidden = 0;
  const int64_t* ids = nullptr;
  const float* weights = nullptr;  // [T, K]
  bool has_weights = false;        // they travel with the rows, for a combine that sums by rank
  int num_tokens = 0;
  int num_topk = 0;
  int max_tokens = 0;
  int num_experts = 0;
  ScaleForm form = ScaleForm::kNone;

  uint64_t row_bytes() const {  // as it travels
    return form == ScaleForm::kNone ? hidden * dtype_bytes(dtype) : hidden;
  }
};

/// Where its result goes, L experts with room for M * N rows each. Rows of an expert beyond its
/// count are not written.
struct LowLatencyRows {
  std::byte* x = nullptr;           // [L, M*N, row_bytes]
  std::byte* scales = nullptr;      // fp32 [L, H/128, M*N], or of kUe8m0 int32 [L, H/512, M*N]
  int32_t* count = nullptr;         // [L]
  int32_t* src_info = nullptr;      // [L, M*N]: token
  int32_t* slots = nullptr;         // [L, M*N]: owner_slot()
  int64_t* layout_range = nullptr;  // [L, N]
  int64_t* wait_ns = nullptr;       // [N], added to; or null
  CopyTable copies;                 // of a dispatch with weights
};

/// Expert rows on their way back: x [L, M*N, hidden] with slots and ranges of the dispatch.
struct LowLatencyCombine {
  const std::byte* x = nullptr;
  Dtype dtype = Dtype::kBfloat16;
  uint64_t hidden = 0;
  const int32_t* slots = nullptr;
  const int64_t* layout_range = nullptr;
  const int64_t* ids = nullptr;    // [T, K], as dispatched
  const float* weights = nullptr;  // [T, K]
  int num_tokens = 0;
  int num_topk = 0;
  int max_tokens = 0;
  int num_experts = 0;
  uint32_t of_phase = 0;  // of the dispatch
  uint64_t ids_hash = 0;  // of the dispatch's ids
  /// Every rank adds up its own experts' rows of a token, with the weights that came with it, and rounds
  /// once more: one row comes back for each (token, rank).
  bool sums_by_rank = false;
  CopyTable copies;
  uint64_t weights_hash = 0;  // of the dispatch's weights

  uint64_t row_bytes() const { return hidden * dtype_bytes(dtype); }
};

/// Shapes: x [T] rows, side [T] side rows (scales), is_in_rank [T, N]; ids and weights [T, K] if it
/// has them (a rank without tokens has no memory either), per_expert [E] or null.
struct Dispatch {
  const std::byte* x = nullptr;
  uint64_t row_bytes = 0;
  const std::byte* side = nullptr;
  uint64_t side_bytes = 0;
  int num_tokens = 0;
  const bool* is_in_rank = nullptr;
  const int32_t* per_expert = nullptr;
  const int64_t* ids = nullptr;
  const float* weights = nullptr;
  bool has_ids = false;
  bool has_weights = false;
  int num_topk = 0;
  int num_experts = 0;
  uint32_t of_phase = 0;  // with a handle: of the dispatch that it is of
};

/// What comes, known once all ranks have announced it.
struct Incoming {
  std::vector<int32_t> rows_of;      // [N] by source
  std::vector<int32_t> rank_prefix;  // [N, N]: copies of sources 0..i to rank j
  std::vector<int32_t> per_expert;   // [L]; empty without ids
  int32_t num_rows = 0;
  int32_t most_tokens = 0;  // of any rank
  uint32_t phase = 0;
};

/// Where it goes: room for Incoming::num_rows rows at least. What is null is not wanted.
struct DispatchedRows {
  std::byte* x = nullptr;
  std::byte* side = nullptr;
  int64_t* ids = nullptr;
  float* weights = nullptr;
  int32_t* source_token = nullptr;
  int32_t num_rows = 0;  // room: rows beyond those that come get ids of -1 and weights of 0
};

/// x [num_rows] rows by source, as a dispatch gave them.
struct Combine {
  const std::byte* x = nullptr;
  Dtype dtype = Dtype::kBfloat16;
  uint64_t hidden = 0;
  const float* weights = nullptr;  // [num_rows, K]
  bool has_weights = false;
  int num_topk = 0;
  std::span<const int32_t> rows_of;  // [N]
  const int32_t* source_token = nullptr;
  int32_t num_rows = 0;
  int32_t most_tokens = 0;
  const bool* is_in_rank = nullptr;  // [T, N] of this rank's tokens
  int num_tokens = 0;
  const std::byte* biases[2] = {nullptr, nullptr};  // [T, hidden] or null
  /// Rows of one node are summed there, and rounded once more, before they go to another one.
  bool sums_by_node = false;
  uint32_t of_phase = 0;
  std::byte* out = nullptr;      // [T, hidden]
  float* out_weights = nullptr;  // [T, K] or null

  uint64_t row_bytes() const { return hidden * dtype_bytes(dtype); }
};

Status check_experts(int num_experts, int num_ranks, int num_topk);
/// Every id is -1 to E - 1.
Status check_ids(const int64_t* ids, int num_tokens, int num_topk, int num_experts);
/// What needs no look at ids, rows or counts, which may be in a GPU's memory.
Status check_shape(const LowLatencyDispatch& call, int num_ranks);
Status check_shape(const LowLatencyCombine& call, int num_ranks);
Status check_shape(const Dispatch& call, int num_ranks);
Status check_shape(const Combine& call);
/// That and the rest.
Status check(const LowLatencyDispatch& call, int num_ranks);
Status check(const LowLatencyCombine& call, int num_ranks);
Status check(const Dispatch& call, int num_ranks);
Status check(const Combine& call, int num_ranks);

uint64_t hash_of(const int64_t* ids, int num_tokens, int num_topk);
/// Of their bits.
uint64_t hash_of(const float* weights, int num_tokens, int num_topk);

}  // namespace braid::moe
