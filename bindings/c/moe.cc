// The C interface of dispatch and combine.
#include "braid/moe.h"

#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "handle.h"
#include "moe/buffer.h"

/// What a low-latency dispatch was given, for its combine.
struct Dispatched {
  uint64_t phase = 0;  // 0: none
  uint64_t ids_hash = 0;
  int max_tokens = 0;
  int num_experts = 0;
};

struct braid_moe {
  explicit braid_moe(std::unique_ptr<braid::moe::Buffer> made) : buffer(std::move(made)) {}

  void note(const Dispatched& dispatch) {
    const std::lock_guard lock(mutex);
    dispatches[num_dispatches++ % dispatches.size()] = dispatch;
  }
  Dispatched of(uint64_t phase) {
    const std::lock_guard lock(mutex);
    for (const Dispatched& each : dispatches)
      if (phase != 0 && each.phase == phase) return each;
    return {};
  }

  std::unique_ptr<braid::moe::Buffer> buffer;
  const pid_t process = getpid();  // a fork has its windows, too, and they are memory of both

  static constexpr size_t kAlive = 2;  // results at a time
  std::mutex mutex;                    // for who does not heed "one thread at a time"
  std::array<Dispatched, kAlive> dispatches;
  size_t num_dispatches = 0;
};

struct braid_moe_sent {
  const pid_t process = getpid();
  braid::moe::Buffer* buffer = nullptr;
  bool is_combine = false;
  braid::moe::Buffer::Ticket ticket;
  braid::moe::LowLatencyDispatch dispatch;
  braid::moe::LowLatencyCombine combine;
};

struct braid_moe_handle {
  const pid_t process = getpid();
  braid_moe* owner = nullptr;
  braid::moe::Dispatch call;
  braid::moe::Incoming incoming;
  std::unique_ptr<bool[]> is_in_rank;  // [T, N]
  std::vector<int32_t> per_expert;     // [E], what this rank announces
  std::vector<int32_t> source_token;   // of the rows that came
  bool is_finished = false;
};

namespace {

namespace moe = braid::moe;
using braid::Status;
using braid::c::check_process;
using braid::c::guarded;
using braid::c::on_comm;
using braid::c::to_dtype;

template <typename Body>
braid_code on_moe(braid_moe* handle, const char* function, Body&& body) {
  return guarded([&]() -> Status {
    if (handle == nullptr) return braid::invalid_argument("{}: moe is NULL", function);
    BRAID_RETURN_IF_ERROR(check_process(function, "buffer", handle->process));
    return body(*handle->buffer);
  });
}

Status check_pointers(const char* function, std::initializer_list<const void*> pointers) {
  for (const void* each : pointers)
    if (each == nullptr) return braid::invalid_argument("{}: an argument is NULL", function);
  return {};
}

/// What a dispatch and the combine that answers it have in common.
template <typename Call>
Call call_for(const braid_moe_tokens& tokens, const void* x, braid_dtype dtype) {
  Call call;
  call.x = static_cast<const std::byte*>(x);
  call.dtype = to_dtype(dtype);
  call.hidden = tokens.hidden;
  call.ids = tokens.ids;
  call.num_tokens = tokens.num_tokens;
  call.num_topk = tokens.num_topk;
  call.max_tokens = tokens.max_tokens;
  call.num_experts = tokens.num_experts;
  return call;
}

moe::LowLatencyDispatch dispatch_of(const braid_moe_tokens& tokens) {
  auto call = call_for<moe::LowLatencyDispatch>(tokens, tokens.x, tokens.dtype);
  call.form = static_cast<moe::ScaleForm>(tokens.form);
  return call;
}

Status check_tokens(const char* function, const braid_moe_tokens& tokens) {
  if (tokens.form < BRAID_MOE_AS_IT_IS || tokens.form > BRAID_MOE_E4M3_UE8M0)
    return braid::invalid_argument("{}: form is {}, expected 0 to 3", function,
                                   static_cast<int>(tokens.form));
  if (tokens.num_tokens < 0)
    return braid::invalid_argument("{}: num_tokens is {}", function, tokens.num_tokens);
  if (tokens.num_tokens > 0) return check_pointers(function, {tokens.x, tokens.ids});
  return {};
}

/// Ids apart, which the buffer compares. Places in the caller's rows are made of these numbers.
Status check_is_of(const Dispatched& dispatch, const braid_moe_tokens& tokens, uint64_t phase) {
  if (dispatch.phase == 0)
    return braid::invalid_argument(
        "argument phase: expected that of one of the last {} dispatches, got {}", braid_moe::kAlive,
        phase);
  const auto differs = [](const char* what, int expected, int got) {
    return braid::invalid_argument("argument {}: expected {}, as of the dispatch, got {}", what,
                                   expected, got);
  };
  if (tokens.max_tokens != dispatch.max_tokens)
    return differs("max_tokens", dispatch.max_tokens, tokens.max_tokens);
  if (tokens.num_experts != dispatch.num_experts)
    return differs("num_experts", dispatch.num_experts, tokens.num_experts);
  return {};
}

Status check_batch(const char* function, const braid_moe_batch& batch) {
  if (batch.num_tokens < 0)
    return braid::invalid_argument("{}: num_tokens is {}", function, batch.num_tokens);
  if (batch.num_tokens == 0) return {};
  BRAID_RETURN_IF_ERROR(check_pointers(function, {batch.x, batch.ids}));
  if (batch.side_bytes != 0) BRAID_RETURN_IF_ERROR(check_pointers(function, {batch.side}));
  return batch.has_weights != 0 ? check_pointers(function, {batch.weights}) : Status();
}

/// What a dispatch says of its tokens, computed here: a C caller gives ids alone.
Status lay_out(const char* function, int num_ranks, const braid_moe_batch& batch,
               braid_moe_handle& handle) {
  BRAID_RETURN_IF_ERROR(
      moe::check_experts(batch.num_experts, num_ranks, batch.num_topk).with_context(function));
  BRAID_RETURN_IF_ERROR(
      moe::check_ids(batch.ids, batch.num_tokens, batch.num_topk, batch.num_experts)
          .with_context(function));
  const auto n = static_cast<size_t>(num_ranks), t = static_cast<size_t>(batch.num_tokens);
  const auto k = static_cast<size_t>(batch.num_topk);
  std::vector<int32_t> per_rank(n);
  handle.per_expert.resize(static_cast<size_t>(batch.num_experts));
  handle.is_in_rank = std::make_unique<bool[]>(t * n + 1);
  moe::count({num_ranks, batch.num_experts, batch.num_topk}, {batch.ids, t * k}, t, per_rank,
             handle.per_expert, {handle.is_in_rank.get(), t * n});
  moe::Dispatch& call = handle.call;
  call.x = static_cast<const std::byte*>(batch.x);
  call.row_bytes = batch.row_bytes;
  call.side = static_cast<const std::byte*>(batch.side);
  call.side_bytes = batch.side_bytes;
  call.num_tokens = batch.num_tokens;
  call.is_in_rank = handle.is_in_rank.get();
  call.per_expert = handle.per_expert.data();
  call.ids = batch.ids;
  call.weights = batch.weights;
  call.has_ids = true;
  call.has_weights = batch.has_weights != 0;
  call.num_topk = batch.num_topk;
  call.num_experts = batch.num_experts;
  return {};
}

}  // namespace

extern "C" {

braid_code braid_moe_create(braid_comm* comm, uint64_t half_bytes, int can_shrink,
                            braid_moe** out) {
  return on_comm(comm, "braid_moe_create", [&](braid::comm::Comm& c) -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers("braid_moe_create", {out}));
    *out = nullptr;
    BRAID_ASSIGN_OR_RETURN(auto buffer, moe::Buffer::create(c, {half_bytes, can_shrink != 0}));
    *out = new braid_moe(std::move(buffer));
    return {};
  });
}

braid_code braid_moe_destroy(braid_moe* handle) {
  return guarded([&]() -> Status {
    // In a fork there is no proxy's thread to wait for, and links are the parent's to end.
    if (handle != nullptr && handle->process != getpid()) (void)handle->buffer.release();
    delete handle;
    return {};
  });
}

uint64_t braid_moe_half_bytes(int max_tokens, uint64_t row_bytes, int num_ranks, int num_experts) {
  return moe::low_latency_half_bytes(max_tokens, row_bytes, num_ranks, num_experts);
}

braid_code braid_moe_layout(const int64_t* ids, int num_tokens, int num_topk, int num_ranks,
                            int num_experts, int32_t* per_rank, int32_t* per_expert,
                            uint8_t* is_in_rank) {
  return guarded([&]() -> Status {
    const char* const name = "braid_moe_layout";
    BRAID_RETURN_IF_ERROR(check_pointers(name, {per_rank, per_expert}));
    if (num_tokens < 0 || num_ranks < 1)
      return braid::invalid_argument("{}: {} tokens, {} ranks", name, num_tokens, num_ranks);
    if (num_tokens > 0) BRAID_RETURN_IF_ERROR(check_pointers(name, {ids, is_in_rank}));
    BRAID_RETURN_IF_ERROR(moe::check_experts(num_experts, num_ranks, num_topk).with_context(name));
    BRAID_RETURN_IF_ERROR(
        moe::check_ids(ids, num_tokens, num_topk, num_experts).with_context(name));
    static_assert(sizeof(bool) == sizeof(uint8_t));
    const auto n = static_cast<size_t>(num_ranks), t = static_cast<size_t>(num_tokens);
    moe::count({num_ranks, num_experts, num_topk}, {ids, t * static_cast<size_t>(num_topk)}, t,
               {per_rank, n}, {per_expert, static_cast<size_t>(num_experts)},
               {reinterpret_cast<bool*>(is_in_rank), t * n});
    return {};
  });
}

braid_code braid_moe_send_dispatch(braid_moe* handle, const braid_moe_tokens* tokens,
                                   braid_moe_sent** sent) {
  const char* const name = "braid_moe_send_dispatch";
  return on_moe(handle, name, [&](moe::Buffer& buffer) -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {tokens, sent}));
    *sent = nullptr;
    BRAID_RETURN_IF_ERROR(check_tokens(name, *tokens));
    auto made = std::make_unique<braid_moe_sent>();
    made->buffer = &buffer;
    made->dispatch = dispatch_of(*tokens);
    BRAID_ASSIGN_OR_RETURN(made->ticket, buffer.send(made->dispatch));
    const moe::LowLatencyDispatch& call = made->dispatch;
    handle->note({made->ticket.phase, moe::hash_of(call.ids, call.num_tokens, call.num_topk),
                  call.max_tokens, call.num_experts});
    *sent = made.release();
    return {};
  });
}

braid_code braid_moe_receive_dispatch(braid_moe_sent* sent, const braid_moe_rows* rows) {
  const char* const name = "braid_moe_receive_dispatch";
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {sent, rows}));
    BRAID_RETURN_IF_ERROR(check_process(name, "buffer", sent->process));
    if (sent->is_combine)
      return braid::invalid_argument("{}: expected what a dispatch sent, got a combine's", name);
    BRAID_RETURN_IF_ERROR(check_pointers(
        name, {rows->x, rows->count, rows->src_info, rows->slots, rows->layout_range}));
    if (sent->dispatch.form != moe::ScaleForm::kNone)
      BRAID_RETURN_IF_ERROR(check_pointers(name, {rows->scales}));
    const std::unique_ptr<braid_moe_sent> ended(sent);
    return ended->buffer->receive(ended->ticket, ended->dispatch,
                                  {static_cast<std::byte*>(rows->x),
                                   static_cast<std::byte*>(rows->scales),
                                   rows->count,
                                   rows->src_info,
                                   rows->slots,
                                   rows->layout_range,
                                   rows->wait_ns,
                                   {}});
  });
}

uint64_t braid_moe_phase(const braid_moe_sent* sent) {
  return sent == nullptr ? 0 : sent->ticket.phase;
}

braid_code braid_moe_send_combine(braid_moe* handle, const braid_moe_tokens* tokens, const void* x,
                                  braid_dtype dtype, const int32_t* slots,
                                  const int64_t* layout_range, const float* weights, uint64_t phase,
                                  braid_moe_sent** sent) {
  const char* const name = "braid_moe_send_combine";
  return on_moe(handle, name, [&](moe::Buffer& buffer) -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {tokens, x, slots, layout_range, sent}));
    *sent = nullptr;
    BRAID_RETURN_IF_ERROR(check_tokens(name, *tokens));
    if (tokens->num_tokens > 0) BRAID_RETURN_IF_ERROR(check_pointers(name, {weights}));
    const Dispatched of = handle->of(phase);
    BRAID_RETURN_IF_ERROR(check_is_of(of, *tokens, phase).with_context(name));
    auto made = std::make_unique<braid_moe_sent>();
    made->buffer = &buffer;
    made->is_combine = true;
    moe::LowLatencyCombine& call = made->combine;
    call = call_for<moe::LowLatencyCombine>(*tokens, x, dtype);
    call.slots = slots;
    call.layout_range = layout_range;
    call.weights = weights;
    call.of_phase = static_cast<uint32_t>(phase);
    call.ids_hash = of.ids_hash;
    BRAID_ASSIGN_OR_RETURN(made->ticket, buffer.send(call));
    *sent = made.release();
    return {};
  });
}

braid_code braid_moe_receive_combine(braid_moe_sent* sent, void* out, int64_t* wait_ns) {
  const char* const name = "braid_moe_receive_combine";
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {sent}));
    BRAID_RETURN_IF_ERROR(check_process(name, "buffer", sent->process));
    if (!sent->is_combine)
      return braid::invalid_argument("{}: expected what a combine sent, got a dispatch's", name);
    if (sent->combine.num_tokens > 0) BRAID_RETURN_IF_ERROR(check_pointers(name, {out}));
    const std::unique_ptr<braid_moe_sent> ended(sent);
    return ended->buffer->receive(ended->ticket, ended->combine, static_cast<std::byte*>(out),
                                  wait_ns);
  });
}

braid_code braid_moe_begin_dispatch(braid_moe* owner, const braid_moe_batch* batch,
                                    braid_moe_handle** out) {
  const char* const name = "braid_moe_begin_dispatch";
  return on_moe(owner, name, [&](moe::Buffer& buffer) -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {batch, out}));
    *out = nullptr;
    BRAID_RETURN_IF_ERROR(check_batch(name, *batch));
    auto made = std::make_unique<braid_moe_handle>();
    made->owner = owner;
    BRAID_RETURN_IF_ERROR(lay_out(name, buffer.size(), *batch, *made));
    BRAID_ASSIGN_OR_RETURN(made->incoming, buffer.begin(made->call));
    *out = made.release();
    return {};
  });
}

int32_t braid_moe_num_rows(const braid_moe_handle* handle) {
  return handle == nullptr ? -1 : handle->incoming.num_rows;
}

braid_code braid_moe_counts(const braid_moe_handle* handle, int32_t* rows_of, int32_t* per_expert) {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers("braid_moe_counts", {handle}));
    BRAID_RETURN_IF_ERROR(check_process("braid_moe_counts", "buffer", handle->process));
    const moe::Incoming& incoming = handle->incoming;
    if (rows_of != nullptr) std::copy(incoming.rows_of.begin(), incoming.rows_of.end(), rows_of);
    if (per_expert != nullptr)
      std::copy(incoming.per_expert.begin(), incoming.per_expert.end(), per_expert);
    return {};
  });
}

braid_code braid_moe_finish_dispatch(braid_moe_handle* handle, const braid_moe_received* to) {
  const char* const name = "braid_moe_finish_dispatch";
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {handle, to}));
    BRAID_RETURN_IF_ERROR(check_process(name, "buffer", handle->process));
    if (handle->is_finished) return braid::invalid_argument("{}: it is finished", name);
    if (to->num_rows > 0) BRAID_RETURN_IF_ERROR(check_pointers(name, {to->x}));
    if (to->num_rows > 0 && handle->call.side_bytes != 0)
      BRAID_RETURN_IF_ERROR(check_pointers(name, {to->side}));
    if (to->num_rows < handle->incoming.num_rows)
      return braid::invalid_argument("{}: expected room for {} rows, got {}", name,
                                     handle->incoming.num_rows, to->num_rows);
    handle->source_token.resize(static_cast<size_t>(to->num_rows));
    BRAID_RETURN_IF_ERROR(handle->owner->buffer->finish(
        handle->call, {static_cast<std::byte*>(to->x), static_cast<std::byte*>(to->side), to->ids,
                       to->weights, handle->source_token.data(), to->num_rows}));
    handle->is_finished = true;
    handle->source_token.resize(static_cast<size_t>(handle->incoming.num_rows));
    if (to->source_token != nullptr)
      std::copy(handle->source_token.begin(), handle->source_token.end(), to->source_token);
    return {};
  });
}

braid_code braid_moe_combine(braid_moe* owner, const braid_moe_handle* handle, const void* x,
                             braid_dtype dtype, uint64_t hidden, const float* weights,
                             const void* bias_0, const void* bias_1, int sums_by_node, void* out,
                             float* out_weights) {
  const char* const name = "braid_moe_combine";
  return on_moe(owner, name, [&](moe::Buffer& buffer) -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {handle}));
    if (handle->owner != owner)
      return braid::invalid_argument(
          "{}: argument handle: expected one of this buffer, got one of "
          "another buffer",
          name);
    if (!handle->is_finished)
      return braid::invalid_argument("{}: argument handle: its dispatch is not finished", name);
    if (handle->incoming.num_rows > 0) BRAID_RETURN_IF_ERROR(check_pointers(name, {x}));
    if (handle->call.num_tokens > 0) {
      BRAID_RETURN_IF_ERROR(check_pointers(name, {out}));
      if (weights != nullptr) BRAID_RETURN_IF_ERROR(check_pointers(name, {out_weights}));
    }
    moe::Combine call;
    call.x = static_cast<const std::byte*>(x);
    call.dtype = to_dtype(dtype);
    call.hidden = hidden;
    call.weights = weights;
    call.has_weights = weights != nullptr;
    call.num_topk = handle->call.num_topk;
    call.rows_of = handle->incoming.rows_of;
    call.source_token = handle->source_token.data();
    call.num_rows = handle->incoming.num_rows;
    call.most_tokens = handle->incoming.most_tokens;
    call.is_in_rank = handle->is_in_rank.get();
    call.num_tokens = handle->call.num_tokens;
    call.biases[0] = static_cast<const std::byte*>(bias_0);
    call.biases[1] = static_cast<const std::byte*>(bias_1);
    call.sums_by_node = sums_by_node != 0;
    call.of_phase = handle->incoming.phase;
    call.out = static_cast<std::byte*>(out);
    call.out_weights = weights != nullptr ? out_weights : nullptr;
    return buffer.combine(call);
  });
}

void braid_moe_free_handle(braid_moe_handle* handle) {
  (void)guarded([&]() -> Status {
    const std::unique_ptr<braid_moe_handle> freed(handle);
    if (!freed || freed->is_finished) return {};
    if (freed->process != getpid()) return {};  // its parent's to give up
    moe::Buffer& buffer = *freed->owner->buffer;
    if (buffer.begun_phase() == freed->incoming.phase) buffer.abandon();
    return {};
  });
}

braid_code braid_moe_set_may_gather(braid_moe* handle, int may_gather) {
  return on_moe(handle, "braid_moe_set_may_gather", [&](moe::Buffer& buffer) -> Status {
    buffer.set_may_gather(may_gather != 0);
    return {};
  });
}

braid_code braid_moe_set_masked(braid_moe* handle, int rank, int is_masked) {
  return on_moe(handle, "braid_moe_set_masked",
                [&](moe::Buffer& buffer) { return buffer.set_masked(rank, is_masked != 0); });
}

uint64_t braid_moe_mask(const braid_moe* handle) {
  return handle == nullptr ? 0 : handle->buffer->mask();
}

}  // extern "C"
