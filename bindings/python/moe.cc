// Dispatch and combine over Python buffers: braid._braid.moe. Shapes are python/braid/moe's
// business; here every buffer is checked to have the bytes that the shape needs, so that no call
// from Python reads or writes beyond one.
#include "moe.h"

#include <nanobind/stl/vector.h>

#include <vector>

#include "moe/call_shape.h"
#include "moe/layout.h"
#include "moe_buffer.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

void layout(nb::handle ids, int num_tokens, int num_topk, int num_ranks, int num_experts,
            nb::handle per_rank, nb::handle per_expert, nb::handle is_in_rank) {
  raise_if_failed(
      moe::check_experts(num_experts, num_ranks, num_topk).with_context("get_dispatch_layout"));
  Lent lent("get_dispatch_layout");
  const auto* const in = lent.read<int64_t>(ids, "topk_idx", times({num_tokens, num_topk}));
  const auto tokens = static_cast<uint64_t>(num_tokens), n = static_cast<uint64_t>(num_ranks);
  raise_if_failed(
      moe::check_ids(in, num_tokens, num_topk, num_experts).with_context("get_dispatch_layout"));
  auto* const ranks = lent.write<int32_t>(per_rank, "num_tokens_per_rank", n);
  auto* const experts =
      lent.write<int32_t>(per_expert, "num_tokens_per_expert", times({num_experts}));
  auto* const is_in = lent.write<bool>(is_in_rank, "is_token_in_rank", tokens * n);
  moe::count({num_ranks, num_experts, num_topk}, {in, tokens * static_cast<uint64_t>(num_topk)},
             tokens, {ranks, n}, {experts, static_cast<size_t>(num_experts)}, {is_in, tokens * n});
}

uint64_t ids_hash(nb::handle ids, int num_tokens, int num_topk) {
  Lent lent("low_latency_dispatch");
  return moe::hash_of(lent.read<int64_t>(ids, "topk_idx", times({num_tokens, num_topk})),
                      num_tokens, num_topk);
}

uint64_t weights_hash(nb::handle weights, int num_tokens, int num_topk) {
  Lent lent("low_latency_dispatch");
  return moe::hash_of(lent.read<float>(weights, "topk_weights", times({num_tokens, num_topk})),
                      num_tokens, num_topk);
}

}  // namespace

Dtype dtype_of(const std::string& name) { return value_or_raise(parse_dtype(name)); }

void register_moe(nb::module_& module) {
  nb::module_ inner = module.def_submodule("moe", "Dispatch and combine");
  inner.def("layout", &layout);
  inner.def("ids_hash", &ids_hash);
  inner.def("weights_hash", &weights_hash);
  inner.def("low_latency_half_bytes", &moe::low_latency_half_bytes);
  register_moe_gpu(inner);
  nb::class_<PyMoeBuffer> type(inner, "Buffer");
  type.def(nb::init<PyComm&, uint64_t, bool>(), nb::keep_alive<1, 2>());
  type.def("close", &PyMoeBuffer::close);
  type.def_prop_ro("is_closed", &PyMoeBuffer::is_closed);
  type.def_prop_ro("is_in_call", &PyMoeBuffer::is_in_call);
  type.def_prop_ro("half_bytes", [](PyMoeBuffer& self) { return self.get().layout().half_bytes; });
  type.def_prop_ro("window_bytes", [](PyMoeBuffer& self) { return self.get().layout().bytes(); });
  type.def_prop_ro("mask", [](PyMoeBuffer& self) { return self.get().mask(); });
  type.def_prop_ro("num_nodes", [](PyMoeBuffer& self) { return self.get().nodes().num_nodes; });
  type.def_prop_ro("has_gathered", [](PyMoeBuffer& self) { return self.get().has_gathered(); });
  type.def("set_may_gather",
           [](PyMoeBuffer& self, bool may_gather) { self.get().set_may_gather(may_gather); });
  type.def("set_masked", [](PyMoeBuffer& self, int rank, bool is_masked) {
    raise_if_failed(self.get().set_masked(rank, is_masked));
  });
  type.def("clear_mask", [](PyMoeBuffer& self) { raise_if_failed(self.get().clear_mask()); });
  type.def("sent_bytes", [](PyMoeBuffer& self) {
    std::vector<uint64_t> sent;
    for (int peer = 0; peer < self.get().size(); ++peer)
      sent.push_back(self.get().sent_bytes(peer));
    return sent;
  });
  register_low_latency(inner, type);
  register_normal(inner, type);
}

}  // namespace braid::python
