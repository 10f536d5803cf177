// The C interface of dispatch and combine in normal mode: a dispatch begins, says how many rows will
// come, and ends in the memory that the caller has for them.
#include <algorithm>
#include <vector>

#include "moe_handle.h"

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
using braid::c::check_pointers;
using braid::c::check_process;
using braid::c::guarded;
using braid::c::on_moe;
using braid::c::to_dtype;

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

}  // extern "C"
