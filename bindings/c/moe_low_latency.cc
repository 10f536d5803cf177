// The C interface of dispatch and combine in low-latency mode: what was sent is received by another
// call, and a buffer has two results at a time.
#include "moe_handle.h"

struct braid_moe_sent {
  const pid_t process = getpid();
  braid::moe::Buffer* buffer = nullptr;
  bool is_combine = false;
  braid::moe::Buffer::Ticket ticket;
  braid::moe::LowLatencyDispatch dispatch;
  braid::moe::LowLatencyCombine combine;
};

namespace {

namespace moe = braid::moe;
using braid::Status;
using braid::c::check_pointers;
using braid::c::check_process;
using braid::c::Dispatched;
using braid::c::guarded;
using braid::c::on_moe;
using braid::c::to_dtype;

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

}  // namespace

extern "C" {

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

}  // extern "C"
