// Low-latency calls on a GPU: what kernels are told, and which halves are launched.
#include <type_traits>

#include "moe/call_shape.h"
#include "moe/gpu/checks.h"
#include "moe/gpu/launch.h"
#include "moe/phases.h"

namespace braid::moe::gpu {

namespace {

uint64_t product(int a, int b, uint64_t c = 1) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) * c;
}

// A row's number and its expert travel in one word (word_of).
Status check_words(const LowLatencyDispatch& call, int num_ranks) {
  const uint64_t each = product(call.num_topk, call.num_experts / num_ranks);
  const uint64_t most = (uint64_t{1} << 31) / each;
  if (static_cast<uint64_t>(call.max_tokens) <= most) return {};
  return invalid_argument(
      "argument num_max_dispatch_tokens_per_rank: expected at most {} on GPUs, with {} experts on "
      "a rank and {} of a token, got {}",
      most, call.num_experts / num_ranks, call.num_topk, call.max_tokens);
}

Status check_rows(const LowLatencyDispatch& call, const LowLatencyRows& rows) {
  BRAID_RETURN_IF_ERROR(check_place(rows.x, "recv_x"));
  if (!call.has_weights || rows.copies.is_whole()) return {};
  return invalid_argument("asked for room for copies, found none");
}

}  // namespace

template <typename Call>
Status Buffer::check_send(const Call& call) const {
  BRAID_RETURN_IF_ERROR(check_shape(call, size()));
  if constexpr (std::is_same_v<Call, LowLatencyDispatch>)
    BRAID_RETURN_IF_ERROR(check_words(call, size()));
  BRAID_RETURN_IF_ERROR(check_counts(call.num_experts, call.num_topk));
  BRAID_RETURN_IF_ERROR(check_room(call, layout()));
  BRAID_RETURN_IF_ERROR(check_place(call.x, "x"));
  return check_half();
}

Status Buffer::start_send(comm::Device& device, const LowLatencyDispatch& call, Ticket* ticket,
                          const Launch& launch) {
  LlSendArgs args{};
  args.team = memory_->team();
  args.shape = shape_of(call);
  args.slot = slot_of(call);
  args.x = call.x;
  args.ids = call.ids;
  args.weights = call.has_weights ? call.weights : nullptr;
  args.x_bytes = call.hidden * dtype_bytes(call.dtype);
  args.row_bytes = call.row_bytes();
  args.num_tokens = call.num_tokens;
  args.num_topk = call.num_topk;
  args.num_experts = call.num_experts;
  args.form = call.form;
  args.ticket = ticket;
  return start(device, find_entry(device.kernels(), Entry::kSend, call.dtype, call.form), args,
               launch, product(call.num_tokens, 1, args.x_bytes));
}

Status Buffer::start_fan_out(comm::Device& device, const LowLatencyDispatch& call,
                             const LowLatencyRows& rows, int32_t* stats, const Ticket* ticket,
                             const Launch& launch) {
  LlFanOutArgs args{};
  args.team = memory_->team();
  args.shape = shape_of(call);
  args.slot = slot_of(call);
  args.row_bytes = call.row_bytes();
  args.num_topk = call.num_topk;
  args.num_experts = call.num_experts;
  args.max_tokens = call.max_tokens;
  args.scale_words = static_cast<int32_t>(scale_bytes(call.form, call.hidden) / 4);
  args.ticket = ticket;
  args.x = rows.x;
  args.scales = reinterpret_cast<uint32_t*>(rows.scales);
  args.count = rows.count;
  args.src_info = rows.src_info;
  args.slots = rows.slots;
  args.layout_range = rows.layout_range;
  if (call.has_weights) args.copies = rows.copies;
  args.stats = stats;
  args.wait_ns = rows.wait_ns;
  return start(device, find_entry(device.kernels(), Entry::kFanOut, call.dtype), args, launch,
               product(call.max_tokens, 2 * size(), args.row_bytes));
}

Result<uint64_t> Buffer::send(comm::Device& device, const LowLatencyDispatch& call, Ticket* ticket,
                              const Launch& launch) {
  const char* const name = call_name(CallKind::kLowLatencyDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_send(call)));
  BRAID_RETURN_IF_ERROR(in_rank(
      name, enqueue(device, launch, [&] { return start_send(device, call, ticket, launch); })));
  return open_half();
}

Status Buffer::receive(comm::Device& device, uint64_t number, const LowLatencyDispatch& call,
                       const LowLatencyRows& rows, int32_t* stats, const Ticket* ticket,
                       const Launch& launch) {
  const char* const name = call_name(CallKind::kLowLatencyDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_received(number)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_rows(call, rows)));
  BRAID_RETURN_IF_ERROR(in_rank(name, enqueue(device, launch, [&] {
                                  return start_fan_out(device, call, rows, stats, ticket, launch);
                                })));
  is_open_[number % kHalves] = false;
  return {};
}

Status Buffer::run(comm::Device& device, const LowLatencyDispatch& call, const LowLatencyRows& rows,
                   int32_t* stats, Ticket* ticket, const Launch& launch) {
  const char* const name = call_name(CallKind::kLowLatencyDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_send(call)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_rows(call, rows)));
  return in_rank(name, enqueue(device, launch, [&]() -> Status {
                   BRAID_RETURN_IF_ERROR(start_send(device, call, ticket, launch));
                   const uint64_t number = open_half();
                   BRAID_RETURN_IF_ERROR(start_fan_out(device, call, rows, stats, ticket, launch));
                   is_open_[number % kHalves] = false;
                   return {};
                 }));
}

template <typename Args>
Args Buffer::return_args(const LowLatencyCombine& call, const Ticket* of, Ticket* ticket) const {
  Args args{};
  args.team = memory_->team();
  args.shape = shape_of(call);
  args.x = call.x;
  args.row_bytes = call.row_bytes();
  args.num_tokens = call.num_tokens;
  args.num_topk = call.num_topk;
  args.num_experts = call.num_experts;
  args.max_tokens = call.max_tokens;
  args.of = of;
  args.ticket = ticket;
  return args;
}

Status Buffer::start_return(comm::Device& device, const LowLatencyCombine& call, const Ticket* of,
                            Ticket* ticket, const Launch& launch) {
  const uint64_t bytes = product(call.max_tokens, call.num_topk, call.row_bytes());
  if (call.sums_by_rank) {
    auto args = return_args<LlRankReturnArgs>(call, of, ticket);
    args.copies = call.copies;
    return start(device, find_entry(device.kernels(), Entry::kRankReturn, call.dtype), args, launch,
                 bytes);
  }
  auto args = return_args<LlReturnArgs>(call, of, ticket);
  args.slots = call.slots;
  args.layout_range = call.layout_range;
  return start(device, find_entry(device.kernels(), Entry::kReturn, call.dtype), args, launch,
               bytes);
}

Status Buffer::start_sum(comm::Device& device, const LowLatencyCombine& call, std::byte* out,
                         int64_t* wait_ns, const Ticket* of, const Ticket* ticket,
                         const Launch& launch) {
  LlSumArgs args{};
  args.team = memory_->team();
  args.shape = shape_of(call);
  args.row_bytes = call.row_bytes();
  args.num_tokens = call.num_tokens;
  args.num_topk = call.num_topk;
  args.num_experts = call.num_experts;
  args.ids = call.ids;
  args.weights = call.weights;
  args.of = of;
  args.ticket = ticket;
  args.out = out;
  args.wait_ns = wait_ns;
  const Entry entry = call.sums_by_rank ? Entry::kRankSum : Entry::kSum;
  return start(device, find_entry(device.kernels(), entry, call.dtype), args, launch,
               product(call.num_tokens, call.num_topk, args.row_bytes));
}

Result<uint64_t> Buffer::send(comm::Device& device, const LowLatencyCombine& call, const Ticket* of,
                              Ticket* ticket, const Launch& launch) {
  const char* const name = call_name(CallKind::kLowLatencyCombine);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_send(call)));
  BRAID_RETURN_IF_ERROR(in_rank(name, enqueue(device, launch, [&] {
                                  return start_return(device, call, of, ticket, launch);
                                })));
  return open_half();
}

Status Buffer::receive(comm::Device& device, uint64_t number, const LowLatencyCombine& call,
                       std::byte* out, int64_t* wait_ns, const Ticket* of, const Ticket* ticket,
                       const Launch& launch) {
  const char* const name = call_name(CallKind::kLowLatencyCombine);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_received(number)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_place(out, "out")));
  BRAID_RETURN_IF_ERROR(in_rank(name, enqueue(device, launch, [&] {
                                  return start_sum(device, call, out, wait_ns, of, ticket, launch);
                                })));
  is_open_[number % kHalves] = false;
  return {};
}

Status Buffer::run(comm::Device& device, const LowLatencyCombine& call, std::byte* out,
                   int64_t* wait_ns, const Ticket* of, Ticket* ticket, const Launch& launch) {
  const char* const name = call_name(CallKind::kLowLatencyCombine);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_send(call)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_place(out, "out")));
  return in_rank(name, enqueue(device, launch, [&]() -> Status {
                   BRAID_RETURN_IF_ERROR(start_return(device, call, of, ticket, launch));
                   const uint64_t number = open_half();
                   BRAID_RETURN_IF_ERROR(start_sum(device, call, out, wait_ns, of, ticket, launch));
                   is_open_[number % kHalves] = false;
                   return {};
                 }));
}

}  // namespace braid::moe::gpu
