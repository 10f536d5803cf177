// Low-latency calls over Python buffers.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#include <utility>

#include "moe.h"
#include "moe/call_shape.h"
#include "moe_buffer.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

/// A low-latency call. Made before its first half: its caller can end what a signal's handler cut off.
struct PySend {
  Lent lent;
  moe::Buffer::Ticket ticket;
  moe::LowLatencyDispatch dispatch;
  moe::LowLatencyCombine combine;
  bool is_received = false;

  explicit PySend(bool is_combine)
      : lent(is_combine ? "low_latency_combine" : "low_latency_dispatch") {}
};

/// Of a receive half: the call is used up once the buffer has let it in.
class Receiving {
 public:
  Receiving(PySend& call, const char* function) : call_(call) {
    if (std::exchange(call.is_received, true))
      raise_if_failed(invalid_argument("{}: its hook was called already", function));
  }
  ~Receiving() { call_.is_received = is_let_in; }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;
  bool is_let_in = false;

 private:
  PySend& call_;
};

int local_experts(int num_experts, int size) { return num_experts < size ? 0 : num_experts / size; }

void send_dispatch(PyMoeBuffer& self, PySend& call, nb::handle x, nb::handle ids,
                   nb::handle weights, const Sizes& sizes, const std::string& dtype, int form) {
  moe::LowLatencyDispatch& d = call.dispatch;
  d = dispatch_of(sizes, dtype, form, !weights.is_none());
  const auto item_bytes = static_cast<int64_t>(dtype_bytes(d.dtype));
  const uint64_t choices = times({d.num_tokens, d.num_topk});
  d.x = call.lent.read<std::byte>(x, "x", times({d.num_tokens, std::get<1>(sizes), item_bytes}));
  d.ids = call.lent.read<int64_t>(ids, "topk_idx", choices);
  d.weights = call.lent.read<float>(weights, "topk_weights", choices);
  self.run([&](moe::Buffer& buffer) {
    auto sent = buffer.send(d);
    if (sent.ok()) call.ticket = sent.value();
    return sent.status();
  });
}

/// copies: counts, tokens, places, weights; or none where the dispatch has no weights.
moe::CopyTable copies_of(Lent& lent, nb::handle copies, int num_ranks, int max_tokens,
                         int num_topk) {
  if (copies.is_none()) return {};
  const uint64_t choices = times({num_ranks, max_tokens, num_topk});
  return {lent.write<int32_t>(copies[0], "handle", static_cast<uint64_t>(num_ranks)),
          lent.write<int32_t>(copies[1], "handle", times({num_ranks, max_tokens})),
          lent.write<int32_t>(copies[2], "handle", choices),
          lent.write<float>(copies[3], "handle", choices)};
}

void receive_dispatch(PyMoeBuffer& self, PySend& call, nb::handle x, nb::handle scales,
                      nb::handle count, nb::handle src_info, nb::handle slots,
                      nb::handle layout_range, nb::handle wait_ns, nb::handle copies) {
  const moe::LowLatencyDispatch& d = call.dispatch;
  moe::Buffer& buffer = self.get();
  const int n = buffer.size(), l = local_experts(d.num_experts, n);
  const uint64_t rows = times({l, d.max_tokens, n});
  Lent lent("low_latency_dispatch");
  moe::LowLatencyRows out;
  out.x = lent.write<std::byte>(x, "recv_x", rows * d.row_bytes());
  out.scales = lent.write<std::byte>(scales, "scales", rows * moe::scale_bytes(d.form, d.hidden));
  out.count = lent.write<int32_t>(count, "count", static_cast<uint64_t>(l));
  out.src_info = lent.write<int32_t>(src_info, "src_info", rows);
  out.slots = lent.write<int32_t>(slots, "slots", rows);
  out.layout_range = lent.write<int64_t>(layout_range, "layout_range", times({l, n}));
  out.wait_ns =
      lent.write<int64_t>(wait_ns, "dispatch_wait_recv_cost_stats", static_cast<uint64_t>(n));
  out.copies = copies_of(lent, copies, n, d.max_tokens, d.num_topk);
  if (d.has_weights && !out.copies.is_whole())
    raise_if_failed(
        invalid_argument("low_latency_dispatch: asked for room for copies, found none"));
  Receiving receiving(call, "low_latency_dispatch");
  self.run(
      [&](moe::Buffer& own) { return own.receive(call.ticket, d, out, &receiving.is_let_in); });
}

void send_combine(PyMoeBuffer& self, PySend& call, nb::handle x, nb::handle slots,
                  nb::handle layout_range, nb::handle ids, nb::handle weights, const Sizes& sizes,
                  const std::string& dtype, uint32_t of_phase, uint64_t ids_hash, nb::handle copies,
                  uint64_t weights_hash) {
  moe::Buffer& buffer = self.get();
  moe::LowLatencyCombine& c = call.combine;
  set_sizes(c, sizes, dtype);
  c.of_phase = of_phase;
  c.ids_hash = ids_hash;
  c.weights_hash = weights_hash;
  const int n = buffer.size(), l = local_experts(c.num_experts, n);
  const uint64_t rows = times({l, c.max_tokens, n}), choices = times({c.num_tokens, c.num_topk});
  Lent& lent = call.lent;
  c.x = lent.read<std::byte>(x, "x", rows * c.row_bytes());
  c.slots = lent.read<int32_t>(slots, "handle", rows);
  c.layout_range = lent.read<int64_t>(layout_range, "handle", times({l, n}));
  c.ids = lent.read<int64_t>(ids, "topk_idx", choices);
  c.weights = lent.read<float>(weights, "topk_weights", choices);
  c.copies = copies_of(lent, copies, n, c.max_tokens, c.num_topk);
  c.sums_by_rank = c.copies.tokens != nullptr;
  self.run([&](moe::Buffer& own) {
    auto sent = own.send(c);
    if (sent.ok()) call.ticket = sent.value();
    return sent.status();
  });
}

/// Whether it was sent: then its receive half is over, too.
bool drop(PyMoeBuffer& self, PySend& call) {
  if (call.ticket.phase == 0) return false;
  if (!std::exchange(call.is_received, true)) self.get().drop(call.ticket);
  return true;
}

void receive_combine(PyMoeBuffer& self, PySend& call, nb::handle out, nb::handle wait_ns) {
  const moe::LowLatencyCombine& c = call.combine;
  moe::Buffer& buffer = self.get();
  Lent lent("low_latency_combine");
  auto* const to =
      lent.write<std::byte>(out, "out", static_cast<uint64_t>(c.num_tokens) * c.row_bytes());
  auto* const waits = lent.write<int64_t>(wait_ns, "combine_wait_recv_cost_stats",
                                          static_cast<uint64_t>(buffer.size()));
  Receiving receiving(call, "low_latency_combine");
  self.run([&](moe::Buffer& own) {
    return own.receive(call.ticket, c, to, waits, &receiving.is_let_in);
  });
}

}  // namespace

moe::LowLatencyDispatch dispatch_of(const Sizes& sizes, const std::string& dtype, int form,
                                    bool has_weights) {
  moe::LowLatencyDispatch call;
  set_sizes(call, sizes, dtype);
  call.form = static_cast<moe::ScaleForm>(form);
  call.has_weights = has_weights;
  return call;
}

void check_dispatch(int rank, const moe::WindowLayout& layout,
                    const moe::LowLatencyDispatch& call) {
  Status status = moe::check_shape(call, layout.num_ranks);
  if (status.ok()) status = moe::check_room(call, layout);
  raise_if_failed(status.with_context(fmt::format("low_latency_dispatch on rank {}", rank)));
}

void register_low_latency(nb::module_& inner, nb::class_<PyMoeBuffer>& type) {
  nb::class_<PySend>(inner, "Send")
      .def(nb::init<bool>())
      .def_prop_ro("phase", [](const PySend& self) { return self.ticket.phase; });
  type.def("check_dispatch", [](PyMoeBuffer& self, const Sizes& sizes, const std::string& dtype,
                                int form, bool has_weights) {
    check_dispatch(self.get().rank(), self.get().layout(),
                   dispatch_of(sizes, dtype, form, has_weights));
  });
  type.def("send_dispatch", &send_dispatch, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg(), nb::arg(), nb::arg());
  type.def("receive_dispatch", &receive_dispatch, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none());
  type.def("send_combine", &send_combine, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  type.def("drop", &drop);
  type.def("receive_combine", &receive_combine, nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace braid::python
