// Dispatch and combine on GPU memory by addresses: braid._braid.moe.GpuBuffer. Shapes, types and
// places are python/braid/torch/moe's business, who knows its tensors; here are the calls of
// moe/gpu/buffer.h in the order of the comm's.
#include "moe.h"
#include "moe/gpu/fatbins.h"
#include "moe_gpu_buffer.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

void layout(PyGpuMoe& self, uint64_t ids, int num_tokens, int num_topk, int num_experts,
            uint64_t per_rank, uint64_t per_expert, uint64_t is_in_rank, uint64_t stream) {
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.count(device, at<int64_t>(ids), num_tokens, num_topk, num_experts,
                        {at<int32_t>(per_rank), at<int32_t>(per_expert), at<bool>(is_in_rank)},
                        launch_on(stream, 1));
  });
}

}  // namespace

void register_moe_gpu(nb::module_& inner) {
  inner.def("has_kernels", [] { return !kernels::layout_counts_fatbin().empty(); });
  inner.attr("ticket_bytes") = sizeof(moe::gpu::Ticket);
  inner.def("incoming_words", &moe::gpu::incoming_words);
  inner.attr("incoming_head_words") = moe::gpu::kIncomingHeadWords;
  nb::class_<PyGpuMoe> type(inner, "GpuBuffer");
  type.def(nb::init<PyComm&, int, uint64_t, bool>(), nb::keep_alive<1, 2>());
  type.def("close", &PyGpuMoe::close);
  type.def_prop_ro("half_bytes", [](PyGpuMoe& self) { return self.get().layout().half_bytes; });
  type.def("layout", &layout);
  register_low_latency(inner, type);
  register_normal(inner, type);
}

}  // namespace braid::python
