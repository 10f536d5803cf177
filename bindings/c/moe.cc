// The C interface of dispatch and combine: buffers, and what both modes have.
#include "braid/moe.h"

#include <unistd.h>

#include <utility>

#include "moe_handle.h"

namespace {

namespace moe = braid::moe;
using braid::Status;
using braid::c::check_pointers;
using braid::c::guarded;
using braid::c::on_comm;
using braid::c::on_moe;

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
