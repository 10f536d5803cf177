#include "moe/call_shape.h"

namespace braid::moe {

namespace {
constexpr uint32_t kHasIds = 1, kHasWeights = 2, kSumsByNode = 4, kSumsByRank = 8;
constexpr uint32_t kFormHasWeights = 8;  // beside a ScaleForm
}  // namespace

CallShape shape_of(const LowLatencyDispatch& call) {
  return {.kind = CallKind::kLowLatencyDispatch,
          .dtype = static_cast<uint32_t>(call.dtype),
          .num_experts = static_cast<uint32_t>(call.num_experts),
          .num_topk = static_cast<uint32_t>(call.num_topk),
          .max_tokens = static_cast<uint32_t>(call.max_tokens),
          .row_bytes = static_cast<uint32_t>(call.row_bytes()),
          .side_bytes = static_cast<uint32_t>(scale_bytes(call.form, call.hidden)),
          .options = static_cast<uint32_t>(call.form) | (call.has_weights ? kFormHasWeights : 0),
          .of_phase = 0};
}

CallShape shape_of(const LowLatencyCombine& call) {
  return {.kind = CallKind::kLowLatencyCombine,
          .dtype = static_cast<uint32_t>(call.dtype),
          .num_experts = static_cast<uint32_t>(call.num_experts),
          .num_topk = static_cast<uint32_t>(call.num_topk),
          .max_tokens = static_cast<uint32_t>(call.max_tokens),
          .row_bytes = static_cast<uint32_t>(call.row_bytes()),
          .side_bytes = 0,
          .options = call.sums_by_rank ? kSumsByRank : 0,
          .of_phase = call.of_phase};
}

CallShape shape_of(const Dispatch& call) {
  return {.kind = CallKind::kDispatch,
          .dtype = 0,
          .num_experts = static_cast<uint32_t>(call.num_experts),
          .num_topk = static_cast<uint32_t>(call.num_topk),
          .max_tokens = 0,
          .row_bytes = static_cast<uint32_t>(call.row_bytes),
          .side_bytes = static_cast<uint32_t>(call.side_bytes),
          .options = (call.has_ids ? kHasIds : 0) | (call.has_weights ? kHasWeights : 0),
          .of_phase = call.of_phase};
}

CallShape shape_of(const Combine& call) {
  return {.kind = CallKind::kCombine,
          .dtype = static_cast<uint32_t>(call.dtype),
          .num_experts = 0,
          .num_topk = static_cast<uint32_t>(call.has_weights ? call.num_topk : 0),
          .max_tokens = 0,
          .row_bytes = static_cast<uint32_t>(call.row_bytes()),
          .side_bytes = 0,
          .options = call.sums_by_node ? kSumsByNode : 0,
          .of_phase = call.of_phase};
}

Slot slot_of(const LowLatencyDispatch& call) {
  return {call.num_topk, call.row_bytes(), scale_bytes(call.form, call.hidden), call.has_weights};
}

Rounds rounds_of(const Dispatch& call, uint64_t region_bytes, int num_ranks) {
  return dispatch_rounds(region_bytes, num_ranks, call.num_experts / num_ranks,
                         call.has_ids ? call.num_topk : 0, call.has_weights ? call.num_topk : 0,
                         call.row_bytes, call.side_bytes);
}

Rounds rounds_of(const Combine& call, uint64_t region_bytes) {
  return combine_rounds(region_bytes, call.has_weights ? call.num_topk : 0, call.row_bytes());
}

Status too_small(uint64_t wanted, uint64_t found) {
  return invalid_argument(
      "the buffer is too small: expected halves of {} bytes for this shape "
      "(get_low_latency_rdma_size_hint), got {}",
      wanted, found);
}

Status check_room(const LowLatencyDispatch& call, const WindowLayout& layout) {
  const uint64_t region = static_cast<uint64_t>(call.max_tokens) * slot_of(call).bytes;
  if (region <= layout.region_bytes()) return {};
  return too_small(region * layout.ranks(), layout.half_bytes);
}

Status check_room(const LowLatencyCombine& call, const WindowLayout& layout) {
  const uint64_t half = static_cast<uint64_t>(call.max_tokens) *
                        static_cast<uint64_t>(call.num_topk) * call.row_bytes();
  if (call.sums_by_rank) {
    const uint64_t region = static_cast<uint64_t>(call.max_tokens) * call.row_bytes();
    return region <= layout.region_bytes() ? Status()
                                           : too_small(region * layout.ranks(), layout.half_bytes);
  }
  return half <= layout.half_bytes ? Status() : too_small(half, layout.half_bytes);
}

Status no_room_for_copies(uint64_t copy_bytes, uint64_t room) {
  return invalid_argument(
      "the buffer is too small: expected room of {} bytes for one copy of each rank, got {}",
      copy_bytes, room);
}

}  // namespace braid::moe
