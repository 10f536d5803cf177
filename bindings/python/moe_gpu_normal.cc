// Normal calls on GPU memory by addresses.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>

#include "moe.h"
#include "moe_gpu_buffer.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

/// A dispatch between its two steps; made before it is begun.
struct GpuBegun {
  moe::Dispatch call;
  moe::Incoming incoming;  // where the host waited for it
  moe::gpu::Ticket* ticket = nullptr;
  const moe::gpu::Ticket* of = nullptr;
  int32_t* words = nullptr;
  bool is_begun = false;  // and not over
};

/// Of a normal dispatch: tokens, bytes of a row and of a row of scales, K, experts.
using NormalSizes = std::tuple<int, int64_t, int64_t, int, int>;

moe::Dispatch dispatch_at(uint64_t x, uint64_t side, uint64_t is_in_rank, uint64_t per_expert,
                          uint64_t ids, uint64_t weights, const NormalSizes& sizes, bool has_ids,
                          bool has_weights) {
  const auto [num_tokens, row_bytes, side_bytes, num_topk, num_experts] = sizes;
  moe::Dispatch d;
  d.x = at<std::byte>(x);
  d.row_bytes = static_cast<uint64_t>(row_bytes);
  d.side = at<std::byte>(side);
  d.side_bytes = static_cast<uint64_t>(side_bytes);
  d.num_tokens = num_tokens;
  d.is_in_rank = at<bool>(is_in_rank);
  d.per_expert = at<int32_t>(per_expert);
  d.ids = at<int64_t>(ids);
  d.weights = at<float>(weights);
  d.has_ids = has_ids;
  d.has_weights = has_weights;
  d.num_topk = num_topk;
  d.num_experts = num_experts;
  return d;
}

moe::DispatchedRows dispatched_at(uint64_t x, uint64_t side, uint64_t ids, uint64_t weights,
                                  uint64_t source_token, int num_rows) {
  return {at<std::byte>(x),   at<std::byte>(side),       at<int64_t>(ids),
          at<float>(weights), at<int32_t>(source_token), num_rows};
}

/// Both steps, or neither: what is begun and cannot be finished is given up.
void run(PyGpuMoe& self, uint64_t x, uint64_t side, uint64_t is_in_rank, uint64_t per_expert,
         uint64_t ids, uint64_t weights, const NormalSizes& sizes, bool has_ids, bool has_weights,
         uint64_t of, uint64_t ticket, uint64_t incoming, uint64_t out, uint64_t out_side,
         uint64_t out_ids, uint64_t out_weights, uint64_t source_token, int num_rows,
         uint64_t stream, int num_sms) {
  const auto call =
      dispatch_at(x, side, is_in_rank, per_expert, ids, weights, sizes, has_ids, has_weights);
  const auto rows = dispatched_at(out, out_side, out_ids, out_weights, source_token, num_rows);
  auto* const words = at<int32_t>(incoming);
  const auto* const first = at<moe::gpu::Ticket>(of);
  auto* const own = at<moe::gpu::Ticket>(ticket);
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    const moe::gpu::Launch launch = launch_on(stream, num_sms);
    const bool is_anothers = buffer.is_begun();
    const Status done = buffer.run(device, call, rows, first, own, words, launch);
    if (!done.ok() && !is_anothers) (void)buffer.abandon(device, call, first, own, words, launch);
    return done;
  });
}

void begin(PyGpuMoe& self, GpuBegun& begun, uint64_t x, uint64_t side, uint64_t is_in_rank,
           uint64_t per_expert, uint64_t ids, uint64_t weights, const NormalSizes& sizes,
           bool has_ids, bool has_weights, uint64_t of, uint64_t ticket, uint64_t incoming,
           bool tells_host, uint64_t stream, int num_sms) {
  begun.call =
      dispatch_at(x, side, is_in_rank, per_expert, ids, weights, sizes, has_ids, has_weights);
  begun.of = at<moe::gpu::Ticket>(of);
  begun.ticket = at<moe::gpu::Ticket>(ticket);
  begun.words = at<int32_t>(incoming);
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) -> Status {
    BRAID_RETURN_IF_ERROR(buffer.begin(device, begun.call, begun.of, begun.ticket, begun.words,
                                       tells_host, launch_on(stream, num_sms)));
    begun.is_begun = true;
    return {};
  });
}

/// Sizes of what was begun, which tells the host. With memory for num_rows it is tried meanwhile to finish
/// it: true where that was enough.
bool await_sizes(PyGpuMoe& self, GpuBegun& begun, uint64_t x, uint64_t side, uint64_t ids,
                 uint64_t weights, uint64_t source_token, int num_rows, uint64_t stream,
                 int num_sms) {
  bool is_finished = false;
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) -> Status {
    if (num_rows != 0)
      BRAID_RETURN_IF_ERROR(buffer.try_finish(
          device, begun.call, dispatched_at(x, side, ids, weights, source_token, num_rows),
          begun.of, begun.ticket, begun.words, launch_on(stream, num_sms)));
    BRAID_ASSIGN_OR_RETURN(
        begun.incoming, buffer.await_incoming(device, begun.call, self.comm().state().interrupt));
    begun.is_begun = buffer.is_begun();
    is_finished = !begun.is_begun;
    return {};
  });
  return is_finished;
}

/// Nothing where it was not begun, or is over.
void abandon(PyGpuMoe& self, GpuBegun& begun, uint64_t stream, int num_sms) {
  if (!std::exchange(begun.is_begun, false)) return;
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.abandon(device, begun.call, begun.of, begun.ticket, begun.words,
                          launch_on(stream, num_sms));
  });
}

void finish(PyGpuMoe& self, GpuBegun& begun, uint64_t x, uint64_t side, uint64_t ids,
            uint64_t weights, uint64_t source_token, int num_rows, uint64_t stream, int num_sms) {
  const auto rows = dispatched_at(x, side, ids, weights, source_token, num_rows);
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) -> Status {
    BRAID_RETURN_IF_ERROR(buffer.finish(device, begun.call, rows, begun.of, begun.ticket,
                                        begun.words, launch_on(stream, num_sms)));
    begun.is_begun = false;
    return {};
  });
}

void combine(PyGpuMoe& self, uint64_t x, uint64_t weights, bool has_weights, uint64_t incoming,
             uint64_t source_token, uint64_t is_in_rank, uint64_t bias_0, uint64_t bias_1,
             uint64_t out, uint64_t out_weights, int num_tokens, int hidden, int num_topk,
             const std::string& dtype, uint64_t of, uint64_t stream, int num_sms) {
  moe::Combine c;
  c.x = at<std::byte>(x);
  c.dtype = dtype_of(dtype);
  c.hidden = static_cast<uint64_t>(hidden);
  c.weights = at<float>(weights);
  c.has_weights = has_weights;
  c.num_topk = num_topk;
  c.source_token = at<int32_t>(source_token);
  c.is_in_rank = at<bool>(is_in_rank);
  c.num_tokens = num_tokens;
  c.biases[0] = at<std::byte>(bias_0);
  c.biases[1] = at<std::byte>(bias_1);
  c.out = at<std::byte>(out);
  c.out_weights = at<float>(out_weights);
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.combine(device, c, at<int32_t>(incoming), at<moe::gpu::Ticket>(of),
                          launch_on(stream, num_sms));
  });
}

}  // namespace

void register_normal(nb::module_& inner, nb::class_<PyGpuMoe>& type) {
  nb::class_<GpuBegun>(inner, "GpuBegun")
      .def(nb::init<>())
      .def_prop_ro("per_expert", [](const GpuBegun& self) { return self.incoming.per_expert; })
      .def_prop_ro("num_rows", [](const GpuBegun& self) { return self.incoming.num_rows; });
  type.def("run", &run);
  type.def("begin", &begin);
  type.def("await_sizes", &await_sizes);
  type.def("finish", &finish);
  type.def("abandon", &abandon);
  type.def("combine", &combine);
}

}  // namespace braid::python
