#include "moe/gpu/buffer.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "moe/call_shape.h"
#include "moe/phases.h"
#include "sys/cuda/launch.h"

namespace braid::moe::gpu {

namespace {

constexpr uint64_t kVectorBytes = 16;
constexpr uint64_t kBytesOfBlock = 16384;  // that are worth a block of a low-latency kernel

uint64_t product(int a, int b, uint64_t c = 1) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) * c;
}

Status check_place(const void* at, const char* argument) {
  const auto address = reinterpret_cast<uint64_t>(at);
  if (address % kVectorBytes == 0) return {};
  return invalid_argument("argument {}: expected an address that is a multiple of {}, got {:#x}",
                          argument, kVectorBytes, address);
}

Status check_counts(int num_experts, int num_topk) {
  if (num_experts > kMostExperts)
    return invalid_argument("argument num_experts: expected at most {} on GPUs, got {}",
                            kMostExperts, num_experts);
  if (num_topk > kMostTopk)
    return invalid_argument("argument topk_idx: expected at most {} experts a token, got {}",
                            kMostTopk, num_topk);
  return {};
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

Result<std::unique_ptr<Buffer>> Buffer::create(comm::Device& device, uint64_t half_bytes) {
  if (device.size() > kMostRanks)
    return unsupported("moe buffer: {} ranks: on GPUs at most {}", device.size(), kMostRanks);
  BRAID_RETURN_IF_ERROR(device.faults().status());
  const uint32_t stage_bytes = bulk_stage_bytes(device.gpus().most_shared_bytes);
  BRAID_RETURN_IF_ERROR(preload(device.kernels(), kStagesOfBlock * stage_bytes));
  BRAID_ASSIGN_OR_RETURN(auto memory, Memory::create(device, half_bytes));
  return std::unique_ptr<Buffer>(new Buffer(std::move(memory)));
}

// A call comes here several times: words are made of what failed alone.
Status Buffer::in_rank(const char* call, const Status& status) const {
  if (status.ok()) return {};
  return status.with_context(fmt::format("{} on rank {}", call, memory_->team().rank));
}

// All blocks of all ranks must have a place at once, where ranks share a GPU. Those of a kernel that
// moves `bytes` have something to do each: what a block costs at the end of a step is not worth less.
uint32_t Buffer::blocks(const comm::Device& device, const Launch& launch, uint64_t bytes) const {
  const int most = device.gpus().are_shared ? static_cast<int>(device.gpus().shared_blocks())
                                            : memory_->num_sms();
  const int asked = launch.num_blocks > 0 ? std::min(launch.num_blocks, most) : most;
  const uint64_t busy = bytes / kBytesOfBlock + 1;
  return static_cast<uint32_t>(
      std::min<uint64_t>(static_cast<uint64_t>(std::clamp(asked, 1, kMostBlocks)), busy));
}

template <typename LaunchAll>
Status Buffer::enqueue(comm::Device& device, const Launch& launch, const LaunchAll& launch_all) {
  BRAID_RETURN_IF_ERROR(device.begin(launch.stream));
  const Status launched = launch_all();
  const Status ended = device.end(launch.stream);
  return launched.ok() ? ended : launched;
}

template <typename Args>
Status Buffer::start(comm::Device& device, const Result<sys::Kernel>& kernel, const Args& args,
                     const Launch& launch, uint64_t bytes) {
  BRAID_RETURN_IF_ERROR(kernel.status());
  return sys::launch(device.cuda(), kernel.value(), {blocks(device, launch, bytes), kThreads},
                     launch.stream, args);
}

Status Buffer::start_in_bulk(comm::Device& device, Entry entry, DispatchArgs args,
                             const Launch& launch) {
  args.stage_bytes = bulk_stage_bytes(device.gpus().most_shared_bytes);
  const uint32_t shared_bytes = kStagesOfBlock * args.stage_bytes;
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel,
                         find_entry(device.kernels(), entry, {}, ScaleForm::kNone, shared_bytes));
  const uint32_t num_blocks = blocks(device, launch, kMuch);
  return sys::launch(device.cuda(), kernel, {num_blocks, kThreads, shared_bytes}, launch.stream,
                     args);
}

Status Buffer::check_half() const {
  if (is_begun_) return invalid_argument("a dispatch was begun and not finished");
  if (!is_open_[num_sent_ % kHalves]) return {};
  return invalid_argument(
      "two results are alive: the receive half (hook) of an earlier call was not called yet");
}

template <typename Call>
Status Buffer::check_send(const Call& call) const {
  BRAID_RETURN_IF_ERROR(check_shape(call, size()));
  BRAID_RETURN_IF_ERROR(check_counts(call.num_experts, call.num_topk));
  BRAID_RETURN_IF_ERROR(check_room(call, layout()));
  BRAID_RETURN_IF_ERROR(check_place(call.x, "x"));
  return check_half();
}

Status Buffer::check_dispatch(const LowLatencyDispatch& call) const {
  BRAID_RETURN_IF_ERROR(check_shape(call, size()));
  BRAID_RETURN_IF_ERROR(check_words(call, size()));
  return check_send(call);
}

uint64_t Buffer::open_half() {
  is_open_[num_sent_ % kHalves] = true;
  return num_sent_++;
}

Status Buffer::check_received(uint64_t number) const {
  if (number < num_sent_ && number + kHalves >= num_sent_ && is_open_[number % kHalves]) return {};
  return invalid_argument("its hook was called already");
}

Status Buffer::check_nothing_is_open() const {
  if (is_begun_) return invalid_argument("a dispatch was begun and not finished");
  if (!is_open_[0] && !is_open_[1]) return {};
  return invalid_argument(
      "a low-latency result is alive: its receive half (hook) was not called yet");
}

Status Buffer::count(comm::Device& device, const int64_t* ids, int num_tokens, int num_topk,
                     int num_experts, const LayoutCounts& out, const Launch& launch) {
  constexpr const char* kName = "get_dispatch_layout";
  BRAID_RETURN_IF_ERROR(in_rank(kName, check_experts(num_experts, size(), num_topk)));
  BRAID_RETURN_IF_ERROR(in_rank(kName, check_counts(num_experts, num_topk)));
  const LayoutArgs args{ids,
                        num_tokens,
                        num_topk,
                        size(),
                        num_experts,
                        out.per_rank,
                        out.per_expert,
                        out.is_in_rank,
                        memory_->team().watch};
  const Launch alone{launch.stream, 1};
  return in_rank(kName, enqueue(device, alone, [&] {
                   return start(device, find_entry(device.kernels(), Entry::kLayout, {}), args,
                                alone);
                 }));
}

// ---- low latency ----

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
  BRAID_RETURN_IF_ERROR(in_rank(name, check_dispatch(call)));
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
  BRAID_RETURN_IF_ERROR(in_rank(name, check_dispatch(call)));
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

// ---- normal ----

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
