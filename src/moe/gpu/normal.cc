// Normal calls on a GPU: what kernels are told, the two steps of a dispatch, and the host's wait for what
// comes.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "moe/call_shape.h"
#include "moe/gpu/checks.h"
#include "moe/gpu/launch.h"
#include "moe/phases.h"

namespace braid::moe::gpu {

namespace {

// Of one rank's rows in a round. A call of many tokens has several rounds also where all of them would fit
// into one: one is taken while the next one is sent. Measured among four H200, 4096 tokens of 14 KB, in us:
// with 24 multiprocessors a dispatch in rounds of 256, 512, 1024, 4096 tokens 771, 704, 702, 784, a combine
// 635, 709, 751, 948.
constexpr uint64_t kDispatchRoundBytes = 8 << 20;
// With its own rows in no slot a rank sends as much in a combine's round as there are other ranks. Between two
// H200 rounds of 4, 6, 8, 12, 16 MiB took 322, 299, 299, 291, 304 us, among four those of 4, 6, 8 took 648, 628,
// 645.
constexpr uint64_t combine_round_bytes(int num_ranks) {
  constexpr uint64_t kLeast = 4 << 20, kOfAll = 24 << 20;
  return std::max(kLeast, kOfAll / static_cast<uint64_t>(std::max(num_ranks, 2)));
}

Rounds in_short_rounds(Rounds rounds, uint64_t round_bytes) {
  rounds.tokens = std::min(rounds.tokens, std::max(1, tokens_in(round_bytes, rounds.copy_bytes)));
  return rounds;
}

}  // namespace

DispatchArgs Buffer::arguments(const Dispatch& call, const Ticket* of, Ticket* ticket,
                               int32_t* incoming) const {
  DispatchArgs args{};
  args.team = memory_->team();
  args.shape = shape_of(call);
  args.rounds =
      in_short_rounds(rounds_of(call, layout().region_bytes(), size()), kDispatchRoundBytes);
  args.x = call.x;
  args.row_bytes = call.row_bytes;
  args.side = call.side;
  args.side_bytes = call.side_bytes;
  args.is_in_rank = call.is_in_rank;
  args.per_expert = call.per_expert;
  args.ids = call.ids;
  args.weights = call.weights;
  // Of no tokens there is no memory, but there are weights of what comes.
  if (call.has_weights && args.weights == nullptr)
    args.weights = reinterpret_cast<const float*>(memory_->team().state);
  args.num_tokens = call.num_tokens;
  args.num_topk = call.num_topk;
  args.num_experts = call.num_experts;
  args.of = of;
  args.ticket = ticket;
  args.incoming = incoming;
  return args;
}

Status Buffer::check_begin(const Dispatch& call) const {
  BRAID_RETURN_IF_ERROR(check_shape(call, size()));
  BRAID_RETURN_IF_ERROR(check_counts(call.num_experts, call.num_topk));
  BRAID_RETURN_IF_ERROR(check_place(call.x, "x"));
  const Rounds rounds = rounds_of(call, layout().region_bytes(), size());
  if (rounds.tokens == 0)
    return no_room_for_copies(rounds.begin + rounds.copy_bytes, layout().region_bytes());
  return check_nothing_is_open();
}

Status Buffer::start_begin(comm::Device& device, const Dispatch& call, const Ticket* of,
                           Ticket* ticket, int32_t* incoming, bool tells_host,
                           const Launch& launch) {
  DispatchArgs args = arguments(call, of, ticket, incoming);
  if (tells_host) {
    std::atomic_ref(memory_->host_incoming()[0]).store(0, std::memory_order_relaxed);
    args.host_incoming = memory_->device_incoming();
  }
  BRAID_RETURN_IF_ERROR(start_in_bulk(device, Entry::kBegin, args, launch));
  is_begun_ = true;
  is_word_due_ = is_word_due_ || tells_host;
  tried_rows_ = kNotTried;
  return {};
}

Status Buffer::start_finish(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                            const Ticket* of, Ticket* ticket, int32_t* incoming,
                            const Launch& launch, bool is_trial) {
  DispatchArgs args = arguments(call, of, ticket, incoming);
  args.out = rows.x;
  args.out_side = rows.side;
  args.out_ids = rows.ids;
  args.out_weights = rows.weights;
  args.source_token = rows.source_token;
  args.room_rows = rows.num_rows;
  args.is_trial = is_trial;
  return start_in_bulk(device, Entry::kFinish, args, launch);
}

Status Buffer::begin(comm::Device& device, const Dispatch& call, const Ticket* of, Ticket* ticket,
                     int32_t* incoming, bool tells_host, const Launch& launch) {
  const char* const name = call_name(CallKind::kDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_begin(call)));
  // Of a dispatch that was given up unheard: else it would be taken for this one's.
  if (tells_host) BRAID_RETURN_IF_ERROR(in_rank(name, await_word(device, {})));
  return in_rank(name, enqueue(device, launch, [&] {
                   return start_begin(device, call, of, ticket, incoming, tells_host, launch);
                 }));
}

Status Buffer::try_finish(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                          const Ticket* of, Ticket* ticket, int32_t* incoming,
                          const Launch& launch) {
  const char* const name = call_name(CallKind::kDispatch);
  if (!is_begun_ || tried_rows_ != kNotTried)
    return in_rank(name, invalid_argument("nothing was begun that was not tried"));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_place(rows.x, "recv_x")));
  BRAID_RETURN_IF_ERROR(in_rank(name, enqueue(device, launch, [&] {
                                  return start_finish(device, call, rows, of, ticket, incoming,
                                                      launch, true);
                                })));
  tried_rows_ = rows.num_rows;
  return {};
}

Status Buffer::await_word(comm::Device& device, const std::function<Status()>& interrupt) {
  // The kernel's own deadline is the call's; this one is for a stream that never comes to it.
  const int64_t timeout_ns = 2 * memory_->team().watch.timeout_ns;
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  for (uint32_t looks = 1; is_word_due_; ++looks) {
    is_word_due_ =
        std::atomic_ref(memory_->host_incoming()[0]).load(std::memory_order_acquire) != 1;
    if (!is_word_due_ || looks % 64 != 0) continue;
    BRAID_RETURN_IF_ERROR(device.faults().status());
    if (interrupt) BRAID_RETURN_IF_ERROR(interrupt());
    if (deadline.passed())
      return timeout("its stream did not come to it within {}", format_ns(timeout_ns));
    sched_yield();
  }
  return {};
}

Result<Incoming> Buffer::await_incoming(comm::Device& device, const Dispatch& call,
                                        const std::function<Status()>& interrupt) {
  const char* const name = call_name(CallKind::kDispatch);
  if (!is_begun_ || !is_word_due_)
    return in_rank(name, invalid_argument("nothing was begun that tells what comes"));
  BRAID_RETURN_IF_ERROR(in_rank(name, await_word(device, interrupt)));
  const int32_t* const words = memory_->host_incoming();
  const auto n = static_cast<size_t>(size());
  Incoming incoming;
  incoming.num_rows = words[1];
  is_begun_ = incoming.num_rows > tried_rows_;  // else the trial does it
  incoming.most_tokens = words[2];
  incoming.phase = static_cast<uint32_t>(words[3]);
  const int32_t* at = words + kIncomingHeadWords;
  incoming.rows_of.assign(at, at + n);
  incoming.rank_prefix.assign(at + n, at + n + n * n);
  at += n + n * n;
  if (call.per_expert != nullptr)
    incoming.per_expert.assign(at, at + static_cast<size_t>(call.num_experts) / n);
  return incoming;
}

Status Buffer::finish(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                      const Ticket* of, Ticket* ticket, int32_t* incoming, const Launch& launch) {
  const char* const name = call_name(CallKind::kDispatch);
  if (!is_begun_) return in_rank(name, invalid_argument("nothing was begun"));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_place(rows.x, "recv_x")));
  BRAID_RETURN_IF_ERROR(in_rank(name, enqueue(device, launch, [&] {
                                  return start_finish(device, call, rows, of, ticket, incoming,
                                                      launch);
                                })));
  is_begun_ = false;
  return {};
}

Status Buffer::run(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                   const Ticket* of, Ticket* ticket, int32_t* incoming, const Launch& launch) {
  const char* const name = call_name(CallKind::kDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_begin(call)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_place(rows.x, "recv_x")));
  return in_rank(
      name, enqueue(device, launch, [&]() -> Status {
        BRAID_RETURN_IF_ERROR(start_begin(device, call, of, ticket, incoming, false, launch));
        BRAID_RETURN_IF_ERROR(start_finish(device, call, rows, of, ticket, incoming, launch));
        is_begun_ = false;
        return {};
      }));
}

// To the kernel no rows come: it finds room for them, and takes none.
Status Buffer::abandon(comm::Device& device, const Dispatch& call, const Ticket* of, Ticket* ticket,
                       int32_t* incoming, const Launch& launch) {
  if (!std::exchange(is_begun_, false)) return {};
  const char* const name = call_name(CallKind::kDispatch);
  const auto head = sys::address_of(incoming);
  BRAID_RETURN_IF_ERROR(
      in_rank(name, device.cuda().fill(head + offsetof(IncomingHead, num_rows), 0,
                                       sizeof(IncomingHead::num_rows), launch.stream)));
  return in_rank(name, enqueue(device, launch, [&] {
                   return start_finish(device, call, {}, of, ticket, incoming, launch);
                 }));
}

Status Buffer::combine(comm::Device& device, const Combine& call, const int32_t* incoming,
                       const Ticket* of, const Launch& launch) {
  const char* const name = call_name(CallKind::kCombine);
  BRAID_RETURN_IF_ERROR(in_rank(name, check_shape(call)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_counts(0, call.num_topk)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_place(call.x, "x")));
  for (const std::byte* bias : call.biases)
    BRAID_RETURN_IF_ERROR(in_rank(name, check_place(bias, "bias")));
  CombineArgs args{};
  args.team = memory_->team();
  args.shape = shape_of(call);
  args.rounds =
      in_short_rounds(rounds_of(call, layout().region_bytes()), combine_round_bytes(size()));
  if (args.rounds.tokens == 0)
    return in_rank(name, no_room_for_copies(args.rounds.copy_bytes, layout().region_bytes()));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_nothing_is_open()));
  args.x = call.x;
  args.row_bytes = call.row_bytes();
  args.weights = call.weights;
  args.num_topk = call.num_topk;
  args.incoming = incoming;
  args.source_token = call.source_token;
  args.is_in_rank = call.is_in_rank;
  args.num_tokens = call.num_tokens;
  args.biases[0] = call.biases[0];
  args.biases[1] = call.biases[1];
  args.of = of;
  args.out = call.out;
  args.out_weights = call.out_weights;
  return in_rank(name, enqueue(device, launch, [&] {
                   return start(device, find_entry(device.kernels(), Entry::kCombine, call.dtype),
                                args, launch);
                 }));
}

}  // namespace braid::moe::gpu
