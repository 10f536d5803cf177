// Low-latency calls on GPU memory by addresses.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>

#include "moe.h"
#include "moe_gpu_buffer.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

/// A low-latency call between its halves; what it points at is the caller's to keep.
struct GpuSend {
  moe::LowLatencyDispatch dispatch;
  moe::LowLatencyCombine combine;
  moe::gpu::Ticket* ticket = nullptr;
  const moe::gpu::Ticket* of = nullptr;
  uint64_t number = 0;
};

moe::CopyTable copies_at(uint64_t counts, uint64_t tokens, uint64_t places, uint64_t weights) {
  return {at<int32_t>(counts), at<int32_t>(tokens), at<int32_t>(places), at<float>(weights)};
}

moe::LowLatencyDispatch dispatch_at(uint64_t x, uint64_t ids, uint64_t weights, bool has_weights,
                                    const Sizes& sizes, const std::string& dtype, int form) {
  moe::LowLatencyDispatch d = dispatch_of(sizes, dtype, form, has_weights);
  d.x = at<std::byte>(x);
  d.ids = at<int64_t>(ids);
  d.weights = at<float>(weights);
  return d;
}

moe::LowLatencyRows rows_at(uint64_t x, uint64_t scales, uint64_t count, uint64_t src_info,
                            uint64_t slots, uint64_t layout_range, uint64_t wait_ns,
                            const moe::CopyTable& copies) {
  return {
      at<std::byte>(x),   at<std::byte>(scales),     at<int32_t>(count),   at<int32_t>(src_info),
      at<int32_t>(slots), at<int64_t>(layout_range), at<int64_t>(wait_ns), copies};
}

void run_dispatch(PyGpuMoe& self, uint64_t x, uint64_t ids, uint64_t weights, bool has_weights,
                  const Sizes& sizes, const std::string& dtype, int form, uint64_t ticket,
                  uint64_t out, uint64_t scales, uint64_t count, uint64_t src_info, uint64_t slots,
                  uint64_t layout_range, uint64_t stats, uint64_t wait_ns, uint64_t copy_counts,
                  uint64_t copy_tokens, uint64_t copy_places, uint64_t copy_weights,
                  uint64_t stream, int num_sms) {
  const auto call = dispatch_at(x, ids, weights, has_weights, sizes, dtype, form);
  const auto rows = rows_at(out, scales, count, src_info, slots, layout_range, wait_ns,
                            copies_at(copy_counts, copy_tokens, copy_places, copy_weights));
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.run(device, call, rows, at<int32_t>(stats), at<moe::gpu::Ticket>(ticket),
                      launch_on(stream, num_sms));
  });
}

std::unique_ptr<GpuSend> send_dispatch(PyGpuMoe& self, uint64_t x, uint64_t ids, uint64_t weights,
                                       bool has_weights, const Sizes& sizes,
                                       const std::string& dtype, int form, uint64_t ticket,
                                       uint64_t stream, int num_sms) {
  auto send = std::make_unique<GpuSend>();
  send->dispatch = dispatch_at(x, ids, weights, has_weights, sizes, dtype, form);
  send->ticket = at<moe::gpu::Ticket>(ticket);
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) -> Status {
    BRAID_ASSIGN_OR_RETURN(send->number, buffer.send(device, send->dispatch, send->ticket,
                                                     launch_on(stream, num_sms)));
    return {};
  });
  return send;
}

void receive_dispatch(PyGpuMoe& self, GpuSend& send, uint64_t x, uint64_t scales, uint64_t count,
                      uint64_t src_info, uint64_t slots, uint64_t layout_range, uint64_t stats,
                      uint64_t wait_ns, uint64_t copy_counts, uint64_t copy_tokens,
                      uint64_t copy_places, uint64_t copy_weights, uint64_t stream, int num_sms) {
  const auto rows = rows_at(x, scales, count, src_info, slots, layout_range, wait_ns,
                            copies_at(copy_counts, copy_tokens, copy_places, copy_weights));
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.receive(device, send.number, send.dispatch, rows, at<int32_t>(stats), send.ticket,
                          launch_on(stream, num_sms));
  });
}

moe::LowLatencyCombine combine_at(uint64_t x, uint64_t slots, uint64_t layout_range, uint64_t ids,
                                  uint64_t weights, const Sizes& sizes, const std::string& dtype,
                                  bool sums_by_rank, const moe::CopyTable& copies) {
  moe::LowLatencyCombine c;
  set_sizes(c, sizes, dtype);
  c.x = at<std::byte>(x);
  c.slots = at<int32_t>(slots);
  c.layout_range = at<int64_t>(layout_range);
  c.ids = at<int64_t>(ids);
  c.weights = at<float>(weights);
  c.sums_by_rank = sums_by_rank;
  c.copies = copies;
  return c;
}

void run_combine(PyGpuMoe& self, uint64_t x, uint64_t slots, uint64_t layout_range, uint64_t ids,
                 uint64_t weights, const Sizes& sizes, const std::string& dtype, bool sums_by_rank,
                 uint64_t copy_counts, uint64_t copy_tokens, uint64_t copy_places,
                 uint64_t copy_weights, uint64_t of, uint64_t ticket, uint64_t out,
                 uint64_t wait_ns, uint64_t stream, int num_sms) {
  const auto call = combine_at(x, slots, layout_range, ids, weights, sizes, dtype, sums_by_rank,
                               copies_at(copy_counts, copy_tokens, copy_places, copy_weights));
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.run(device, call, at<std::byte>(out), at<int64_t>(wait_ns),
                      at<moe::gpu::Ticket>(of), at<moe::gpu::Ticket>(ticket),
                      launch_on(stream, num_sms));
  });
}

std::unique_ptr<GpuSend> send_combine(PyGpuMoe& self, uint64_t x, uint64_t slots,
                                      uint64_t layout_range, uint64_t ids, uint64_t weights,
                                      const Sizes& sizes, const std::string& dtype,
                                      bool sums_by_rank, uint64_t copy_counts, uint64_t copy_tokens,
                                      uint64_t copy_places, uint64_t copy_weights, uint64_t of,
                                      uint64_t ticket, uint64_t stream, int num_sms) {
  auto send = std::make_unique<GpuSend>();
  send->combine = combine_at(x, slots, layout_range, ids, weights, sizes, dtype, sums_by_rank,
                             copies_at(copy_counts, copy_tokens, copy_places, copy_weights));
  send->of = at<moe::gpu::Ticket>(of);
  send->ticket = at<moe::gpu::Ticket>(ticket);
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) -> Status {
    BRAID_ASSIGN_OR_RETURN(send->number, buffer.send(device, send->combine, send->of, send->ticket,
                                                     launch_on(stream, num_sms)));
    return {};
  });
  return send;
}

void receive_combine(PyGpuMoe& self, GpuSend& send, uint64_t out, uint64_t wait_ns, uint64_t stream,
                     int num_sms) {
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.receive(device, send.number, send.combine, at<std::byte>(out),
                          at<int64_t>(wait_ns), send.of, send.ticket, launch_on(stream, num_sms));
  });
}

}  // namespace

void register_low_latency(nb::module_& inner, nb::class_<PyGpuMoe>& type) {
  nb::class_<GpuSend>(inner, "GpuSend");
  type.def("check_dispatch", [](PyGpuMoe& self, const Sizes& sizes, const std::string& dtype,
                                int form, bool has_weights) {
    check_dispatch(self.comm().rank(), self.get().layout(),
                   dispatch_of(sizes, dtype, form, has_weights));
  });
  type.def("run_dispatch", &run_dispatch);
  type.def("send_dispatch", &send_dispatch);
  type.def("receive_dispatch", &receive_dispatch);
  type.def("run_combine", &run_combine);
  type.def("send_combine", &send_combine);
  type.def("receive_combine", &receive_combine);
}

}  // namespace braid::python
