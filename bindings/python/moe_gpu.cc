// Dispatch and combine on GPU memory by addresses: braid._braid.moe.GpuBuffer. Shapes, types and
// places are python/braid/torch/moe's business, who knows its tensors; here are the calls of
// moe/gpu/buffer.h in the order of the comm's.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "coll/device/entry.h"
#include "comm.h"
#include "errors.h"
#include "moe.h"
#include "moe/gpu/buffer.h"
#include "moe/gpu/fatbins.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

template <typename T>
T* at(uint64_t address) {
  return sys::pointer_to<T>(address);
}

/// Of one launch: the caller's stream and how many multiprocessors it may have at most, 0: all.
moe::gpu::Launch launch_on(uint64_t stream, int num_sms) { return {{at<void>(stream)}, num_sms}; }

/// A low-latency call between its halves; what it points at is the caller's to keep.
struct GpuSend {
  moe::LowLatencyDispatch dispatch;
  moe::LowLatencyCombine combine;
  moe::gpu::Ticket* ticket = nullptr;
  const moe::gpu::Ticket* of = nullptr;
  uint64_t number = 0;
};

/// A dispatch between its two steps; made before it is begun.
struct GpuBegun {
  moe::Dispatch call;
  moe::Incoming incoming;  // where the host waited for it
  moe::gpu::Ticket* ticket = nullptr;
  const moe::gpu::Ticket* of = nullptr;
  int32_t* words = nullptr;
  bool is_begun = false;  // and not over
};

class PyGpuMoe {
 public:
  PyGpuMoe(PyComm& comm, int gpu, uint64_t half_bytes, bool is_small) : comm_(comm), gpu_(gpu) {
    namespace entry = coll::device;
    const auto memory = is_small ? entry::Memory::kSmall : entry::Memory::kAll;
    run_unlocked([&] {
      return entry::on_device(
          comm.get(), gpu,
          [&](comm::Device& device) -> Status {
            BRAID_ASSIGN_OR_RETURN(buffer_, moe::gpu::Buffer::create(device, half_bytes));
            return {};
          },
          memory);
    });
  }
  ~PyGpuMoe() { end(); }
  void close() {
    const Unlocked released;
    end();
  }
  PyGpuMoe(const PyGpuMoe&) = delete;
  PyGpuMoe& operator=(const PyGpuMoe&) = delete;

  moe::gpu::Buffer& get() {
    if (!buffer_) raise_if_failed(invalid_argument("moe buffer: it was destroyed"));
    return *buffer_;
  }
  comm::Comm& comm() { return comm_.get(); }
  template <typename Call>
  void enqueue(Call&& call) {
    moe::gpu::Buffer& buffer = get();
    run_unlocked([&] {
      return coll::device::on_device(
          comm_.get(), gpu_, [&](comm::Device& device) -> Status { return call(buffer, device); });
    });
  }

 private:
  // A comm that is closed or broken has given everything back, or does so at its end.
  void end() {
    if (buffer_ && !comm_.get().is_closed())
      (void)coll::device::on_device(comm_.get(), gpu_, [this](comm::Device& device) {
        buffer_->close(device);
        return Status();
      });
    buffer_.reset();
  }

  PyComm& comm_;
  const int gpu_;
  std::unique_ptr<moe::gpu::Buffer> buffer_;
};

Dtype dtype_of(const std::string& name) {
  const Result<Dtype> parsed = parse_dtype(name);
  raise_if_failed(parsed.status());
  return parsed.value();
}

moe::CopyTable copies_at(uint64_t counts, uint64_t tokens, uint64_t places, uint64_t weights) {
  return {at<int32_t>(counts), at<int32_t>(tokens), at<int32_t>(places), at<float>(weights)};
}

void layout(PyGpuMoe& self, uint64_t ids, int num_tokens, int num_topk, int num_experts,
            uint64_t per_rank, uint64_t per_expert, uint64_t is_in_rank, uint64_t stream) {
  self.enqueue([&](moe::gpu::Buffer& buffer, comm::Device& device) {
    return buffer.count(device, at<int64_t>(ids), num_tokens, num_topk, num_experts,
                        {at<int32_t>(per_rank), at<int32_t>(per_expert), at<bool>(is_in_rank)},
                        launch_on(stream, 1));
  });
}

/// Of both low-latency calls: tokens, hidden, K, M, experts.
using Sizes = std::tuple<int, int, int, int, int>;

template <typename Call>
void set_sizes(Call& call, const Sizes& sizes) {
  int hidden = 0;
  std::tie(call.num_tokens, hidden, call.num_topk, call.max_tokens, call.num_experts) = sizes;
  call.hidden = static_cast<uint64_t>(hidden);
}

moe::LowLatencyDispatch dispatch_of(uint64_t x, uint64_t ids, uint64_t weights, bool has_weights,
                                    const Sizes& sizes, const std::string& dtype, int form) {
  moe::LowLatencyDispatch d;
  set_sizes(d, sizes);
  d.x = at<std::byte>(x);
  d.dtype = dtype_of(dtype);
  d.ids = at<int64_t>(ids);
  d.weights = at<float>(weights);
  d.has_weights = has_weights;
  d.form = static_cast<moe::ScaleForm>(form);
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
  const auto call = dispatch_of(x, ids, weights, has_weights, sizes, dtype, form);
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
  send->dispatch = dispatch_of(x, ids, weights, has_weights, sizes, dtype, form);
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

moe::LowLatencyCombine combine_of(uint64_t x, uint64_t slots, uint64_t layout_range, uint64_t ids,
                                  uint64_t weights, const Sizes& sizes, const std::string& dtype,
                                  bool sums_by_rank, const moe::CopyTable& copies) {
  moe::LowLatencyCombine c;
  set_sizes(c, sizes);
  c.x = at<std::byte>(x);
  c.dtype = dtype_of(dtype);
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
  const auto call = combine_of(x, slots, layout_range, ids, weights, sizes, dtype, sums_by_rank,
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
  send->combine = combine_of(x, slots, layout_range, ids, weights, sizes, dtype, sums_by_rank,
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

/// Of a normal dispatch: tokens, bytes of a row and of a row of scales, K, experts.
using NormalSizes = std::tuple<int, int64_t, int64_t, int, int>;

moe::Dispatch dispatch_of(uint64_t x, uint64_t side, uint64_t is_in_rank, uint64_t per_expert,
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
      dispatch_of(x, side, is_in_rank, per_expert, ids, weights, sizes, has_ids, has_weights);
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
      dispatch_of(x, side, is_in_rank, per_expert, ids, weights, sizes, has_ids, has_weights);
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

void register_moe_gpu(nb::module_& inner) {
  inner.def("has_kernels", [] { return !kernels::layout_counts_fatbin().empty(); });
  inner.attr("ticket_bytes") = sizeof(moe::gpu::Ticket);
  inner.def("incoming_words", &moe::gpu::incoming_words);
  inner.attr("incoming_head_words") = moe::gpu::kIncomingHeadWords;
  nb::class_<GpuSend>(inner, "GpuSend");
  nb::class_<GpuBegun>(inner, "GpuBegun")
      .def(nb::init<>())
      .def_prop_ro("per_expert", [](const GpuBegun& self) { return self.incoming.per_expert; })
      .def_prop_ro("num_rows", [](const GpuBegun& self) { return self.incoming.num_rows; });
  nb::class_<PyGpuMoe>(inner, "GpuBuffer")
      .def(nb::init<PyComm&, int, uint64_t, bool>(), nb::keep_alive<1, 2>())
      .def("close", &PyGpuMoe::close)
      .def_prop_ro("half_bytes", [](PyGpuMoe& self) { return self.get().layout().half_bytes; })
      .def("layout", &layout)
      .def("check_dispatch",
           [](PyGpuMoe& self, int num_tokens, int hidden, int num_topk, int max_tokens,
              int num_experts, const std::string& dtype, int form, bool has_weights) {
             check_dispatch(self.comm().rank(), self.get().layout(), num_tokens, hidden, num_topk,
                            max_tokens, num_experts, dtype, form, has_weights);
           })
      .def("run_dispatch", &run_dispatch)
      .def("send_dispatch", &send_dispatch)
      .def("receive_dispatch", &receive_dispatch)
      .def("run_combine", &run_combine)
      .def("send_combine", &send_combine)
      .def("receive_combine", &receive_combine)
      .def("run", &run)
      .def("begin", &begin)
      .def("await_sizes", &await_sizes)
      .def("finish", &finish)
      .def("abandon", &abandon)
      .def("combine", &combine);
}

}  // namespace braid::python
