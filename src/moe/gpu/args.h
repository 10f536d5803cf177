// What the kernels of dispatch and combine are told. They run the protocol of phases.h over the same
// windows, in device memory: the same slots, flags, words and acks as between processes, so a result
// has the same bytes.
//
// Numbers of phases and calls are counted on the GPU, not baked in by the host: a graph counts on as
// it is replayed. A send half takes the next numbers and leaves them in the call's ticket, 16 bytes
// of device memory, where its receive half finds them.
//
// Entries, all of kThreads threads; blocks as many as the launch likes (Launcher), all of which must
// have a place on the GPU at once, those of other ranks that share it included:
//
//   braid_moe_layout               LayoutArgs        one block: counts, and which token goes where
//   braid_moe_ll_send[_TYPE]       LlSendArgs        copies to their slots, TYPE: cast on the way
//   braid_moe_ll_fan_out           LlFanOutArgs      copies to their experts' rows
//   braid_moe_ll_return            LlReturnArgs      experts' rows to their owners' slots
//   braid_moe_ll_sum_TYPE          LlSumArgs         a token's rows, added up
//   braid_moe_ll_rank_return_TYPE  LlRankReturnArgs  a token's rows here, added up, to its owner's slot
//   braid_moe_ll_rank_sum_TYPE     LlSumArgs         a token's sums by rank, added up
//   braid_moe_dispatch_begin       DispatchArgs      round 0, announcement, what comes
//   braid_moe_dispatch_finish      DispatchArgs      the other rounds, copies to their places
//   braid_moe_combine_TYPE         CombineArgs       all rounds
//
// TYPE is bf16, fp16 or fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/fault.h"
#include "moe/copy_table.h"
#include "moe/flag_words.h"
#include "moe/scale_form.h"
#include "moe/slot.h"
#include "moe/window_layout.h"

namespace braid::moe::gpu {

inline constexpr int kMostRanks = 16;
inline constexpr int kMostExperts = 2048;
inline constexpr int kMostTopk = 32;
inline constexpr int kThreads = 512;
inline constexpr int kMostBlocks = 512;

/// Of a launch that moves rows in bulk (bulk_rows.cuh): stages of a warp, pieces of rows that it loads
/// ahead, what sizes of stages are multiples of.
inline constexpr uint32_t kBulkStages = 4, kBulkAhead = 2, kBulkUnit = 128;
inline constexpr uint32_t kStagesOfBlock = kThreads / 32 * kBulkStages;
/// Bytes of a stage, of blocks that have so much shared memory; 0: rows go through registers. The rest is
/// for what kernels declare. Smaller stages are of no GPU that has bulk copies and was measured.
constexpr uint32_t bulk_stage_bytes(uint32_t most_shared_bytes) {
  constexpr uint32_t kDeclared = 8 << 10, kLeast = 3 << 10;
  if (most_shared_bytes < kDeclared) return 0;
  const uint32_t bytes = (most_shared_bytes - kDeclared) / kStagesOfBlock / kBulkUnit * kBulkUnit;
  return bytes < kLeast ? 0 : bytes;
}

/// Blocks at ends of steps of one kind.
struct StepCount {
  uint64_t arrived;  // since ever
  uint64_t settled;  // as many as had arrived when the last kernel was over
};

/// Counters of one buffer, in memory that only its GPU uses. All zero at first; they only grow.
struct State {
  uint64_t phase;           // last that was begun
  uint64_t call;            // of it
  StepCount sent[kHalves];  // steps of even and of odd rounds
  StepCount taken[kHalves];
  uint64_t agreed;  // last call of several rounds that all ranks meant alike
  // What one block of a normal kernel leaves for its last one: copies of the phase, by its half (the
  // next phase's are counted while this one's are told), and of the call.
  uint32_t rows[kHalves][kMostRanks];
  uint32_t totals[kMostRanks];
};

struct Ticket {
  uint64_t phase;
  uint64_t call;
};

/// A GPU's window has behind its halves, for each, how many rows every expert of this rank gets of every
/// source, [N, L] int32: with a low-latency dispatch's rows come these and, in a slot's ids, the number
/// of each row among those of its source and expert (word_of). So a receiver places rows by sums over
/// sources alone.
constexpr uint64_t window_bytes(const WindowLayout& layout) {
  return layout.bytes() + kHalves * kMostExperts * sizeof(int32_t);
}
constexpr uint64_t row_counts(const WindowLayout& layout, uint64_t half, int source,
                              int num_local) {
  return layout.bytes() +
         (half * kMostExperts + static_cast<uint64_t>(source) * static_cast<uint64_t>(num_local)) *
             sizeof(int32_t);
}
/// In a slot in place of a local id; -1 for experts elsewhere, as there.
constexpr int32_t word_of(int32_t row, int32_t local_id, int32_t num_local) {
  return row * num_local + local_id;
}

struct Team {
  std::byte* windows[kMostRanks];  // as this GPU addresses them
  WindowLayout layout;
  uint64_t region_bytes;  // the layout's: a quotient, which is long in coming on a GPU
  int32_t rank;
  State* state;
  device::Watch watch;
};

struct LayoutArgs {
  const int64_t* ids;  // [T, K]
  int32_t num_tokens, num_topk, num_ranks, num_experts;
  int32_t* per_rank;    // [N]
  int32_t* per_expert;  // [E]
  bool* is_in_rank;     // [T, N]
  device::Watch watch;
};

struct LlSendArgs {
  Team team;
  CallShape shape;
  Slot slot;
  const std::byte* x;  // [T] rows of x_bytes
  const int64_t* ids;
  uint64_t x_bytes;
  uint64_t row_bytes;  // in the slot
  int32_t num_tokens, num_topk, num_experts;
  ScaleForm form;
  Ticket* ticket;
  const float* weights;  // [T, K], to travel with the rows; or null
};

struct LlFanOutArgs {
  Team team;
  CallShape shape;
  Slot slot;
  uint64_t row_bytes;
  int32_t num_topk, num_experts, max_tokens;
  int32_t scale_words;  // of 4 bytes, of a row
  const Ticket* ticket;
  // Results, as LowLatencyRows has them.
  std::byte* x;
  uint32_t* scales;
  int32_t* count;
  int32_t* src_info;
  int32_t* slots;
  int64_t* layout_range;
  int32_t* stats;    // [L], added to; or null
  int64_t* wait_ns;  // [N], added to; or null
  CopyTable copies;  // of a dispatch with weights, else null
};

struct LlReturnArgs {
  Team team;
  CallShape shape;     // of_phase apart
  const std::byte* x;  // [L, M*N] rows
  uint64_t row_bytes;
  int32_t num_tokens, num_topk, num_experts, max_tokens;
  const int32_t* slots;
  const int64_t* layout_range;
  const Ticket* of;  // of the dispatch
  Ticket* ticket;
};

struct LlRankReturnArgs {
  Team team;
  CallShape shape;     // of_phase apart
  const std::byte* x;  // [L, M*N] rows
  uint64_t row_bytes;
  int32_t num_tokens, num_topk, num_experts, max_tokens;
  CopyTable copies;
  const Ticket* of;  // of the dispatch
  Ticket* ticket;
};

struct LlSumArgs {
  Team team;
  CallShape shape;
  uint64_t row_bytes;
  int32_t num_tokens, num_topk, num_experts;
  const int64_t* ids;
  const float* weights;  // not looked at in sums by rank
  const Ticket* of;
  const Ticket* ticket;
  std::byte* out;    // [T] rows
  int64_t* wait_ns;  // [N], added to; or null
};

/// What comes, in device memory: this, then rows_of [N], rank_prefix [N, N], per_expert [L], int32.
struct IncomingHead {
  int32_t is_known;  // 1, written last
  int32_t num_rows, most_tokens;
  uint32_t phase;
};
inline constexpr int kIncomingHeadWords = sizeof(IncomingHead) / 4;
constexpr int incoming_words(int num_ranks, int num_local) {
  return kIncomingHeadWords + num_ranks + num_ranks * num_ranks + num_local;
}

struct DispatchArgs {
  Team team;
  CallShape shape;  // of_phase apart
  Rounds rounds;
  const std::byte* x;  // [T] rows
  uint64_t row_bytes;
  const std::byte* side;  // [T] rows of side_bytes, a multiple of 4
  uint64_t side_bytes;
  const bool* is_in_rank;     // [T, N]
  const int32_t* per_expert;  // [E], or null
  const int64_t* ids;         // [T, K], or null
  const float* weights;       // [T, K], or null
  int32_t num_tokens, num_topk, num_experts;
  const Ticket* of;  // with a handle: of the dispatch that it is of; or null
  Ticket* ticket;
  int32_t* incoming;       // device memory
  int32_t* host_incoming;  // the same in host memory, or null
  // Results, of dispatch_finish. What is null is not wanted.
  std::byte* out;
  std::byte* out_side;
  int64_t* out_ids;
  float* out_weights;
  int32_t* source_token;
  int32_t room_rows;
  bool is_trial;  // where there is no room for what comes, nothing is done, and another one follows
  uint32_t stage_bytes;  // of bulk_rows.cuh
};

struct CombineArgs {
  Team team;
  CallShape shape;  // of_phase apart
  Rounds rounds;
  const std::byte* x;  // rows by source, as the dispatch gave them
  uint64_t row_bytes;
  const float* weights;  // [rows, K], or null
  int32_t num_topk;
  const int32_t* incoming;      // of the dispatch
  const int32_t* source_token;  // [rows]
  const bool* is_in_rank;       // [T, N] of this rank's tokens
  int32_t num_tokens;
  const std::byte* biases[2];  // [T] rows, or null
  const Ticket* of;
  std::byte* out;      // [T] rows
  float* out_weights;  // [T, K], or null
};

}  // namespace braid::moe::gpu
