// The C interface of dispatch and combine.
#include "braid/moe.h"

#include <memory>
#include <utility>

#include "handle.h"
#include "moe/buffer.h"

struct braid_moe {
  std::unique_ptr<braid::moe::Buffer> buffer;
};

struct braid_moe_sent {
  braid::moe::Buffer* buffer = nullptr;
  braid::moe::Buffer::Ticket ticket;
  braid::moe::LowLatencyDispatch dispatch;
  braid::moe::LowLatencyCombine combine;
};

namespace {

namespace moe = braid::moe;
using braid::Status;
using braid::c::guarded;
using braid::c::on_comm;
using braid::c::to_dtype;

template <typename Body>
braid_code on_moe(braid_moe* handle, const char* function, Body&& body) {
  return guarded([&]() -> Status {
    if (handle == nullptr) return braid::invalid_argument("{}: moe is NULL", function);
    return body(*handle->buffer);
  });
}

Status check_pointers(const char* function, std::initializer_list<const void*> pointers) {
  for (const void* each : pointers)
    if (each == nullptr) return braid::invalid_argument("{}: an argument is NULL", function);
  return {};
}

moe::LowLatencyDispatch dispatch_of(const braid_moe_tokens& tokens) {
  moe::LowLatencyDispatch call;
  call.x = static_cast<const std::byte*>(tokens.x);
  call.dtype = to_dtype(tokens.dtype);
  call.hidden = tokens.hidden;
  call.ids = tokens.ids;
  call.num_tokens = tokens.num_tokens;
  call.num_topk = tokens.num_topk;
  call.max_tokens = tokens.max_tokens;
  call.num_experts = tokens.num_experts;
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

}  // namespace

extern "C" {

braid_code braid_moe_create(braid_comm* comm, uint64_t half_bytes, int can_shrink,
                            braid_moe** out) {
  return on_comm(comm, "braid_moe_create", [&](braid::comm::Comm& c) -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers("braid_moe_create", {out}));
    *out = nullptr;
    BRAID_ASSIGN_OR_RETURN(auto buffer, moe::Buffer::create(c, {half_bytes, can_shrink != 0}));
    *out = new braid_moe{std::move(buffer)};
    return {};
  });
}

braid_code braid_moe_destroy(braid_moe* handle) {
  return guarded([&]() -> Status {
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
    *sent = made.release();
    return {};
  });
}

braid_code braid_moe_receive_dispatch(braid_moe_sent* sent, const braid_moe_rows* rows) {
  const char* const name = "braid_moe_receive_dispatch";
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {sent, rows}));
    BRAID_RETURN_IF_ERROR(check_pointers(
        name, {rows->x, rows->count, rows->src_info, rows->slots, rows->layout_range}));
    if (sent->dispatch.form != moe::ScaleForm::kNone)
      BRAID_RETURN_IF_ERROR(check_pointers(name, {rows->scales}));
    const std::unique_ptr<braid_moe_sent> ended(sent);
    return ended->buffer->receive(
        ended->ticket, ended->dispatch,
        {static_cast<std::byte*>(rows->x), static_cast<std::byte*>(rows->scales), rows->count,
         rows->src_info, rows->slots, rows->layout_range, rows->wait_ns});
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
    auto made = std::make_unique<braid_moe_sent>();
    made->buffer = &buffer;
    moe::LowLatencyCombine& call = made->combine;
    call.x = static_cast<const std::byte*>(x);
    call.dtype = to_dtype(dtype);
    call.hidden = tokens->hidden;
    call.slots = slots;
    call.layout_range = layout_range;
    call.ids = tokens->ids;
    call.weights = weights;
    call.num_tokens = tokens->num_tokens;
    call.num_topk = tokens->num_topk;
    call.max_tokens = tokens->max_tokens;
    call.num_experts = tokens->num_experts;
    call.of_phase = static_cast<uint32_t>(phase);
    call.ids_hash = moe::hash_of(call.ids, call.num_tokens, call.num_topk);
    BRAID_ASSIGN_OR_RETURN(made->ticket, buffer.send(call));
    *sent = made.release();
    return {};
  });
}

braid_code braid_moe_receive_combine(braid_moe_sent* sent, void* out, int64_t* wait_ns) {
  const char* const name = "braid_moe_receive_combine";
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointers(name, {sent}));
    if (sent->combine.num_tokens > 0) BRAID_RETURN_IF_ERROR(check_pointers(name, {out}));
    const std::unique_ptr<braid_moe_sent> ended(sent);
    return ended->buffer->receive(ended->ticket, ended->combine, static_cast<std::byte*>(out),
                                  wait_ns);
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
