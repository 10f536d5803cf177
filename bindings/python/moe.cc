// Dispatch and combine over Python buffers: braid._braid.moe. Shapes are python/braid/moe's
// business; here every buffer is checked to have the bytes that the shape needs, so that no call
// from Python reads or writes beyond one.
#include "moe.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "comm.h"
#include "errors.h"
#include "moe/buffer.h"
#include "moe/call_shape.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

/// Memory that a call uses, borrowed and checked, by the names that the caller knows.
class Lent {
 public:
  explicit Lent(const char* function) : function_(function) {}

  std::byte* take(nb::handle object, const char* name, uint64_t bytes, Access access) {
    held_.push_back(Buffer::borrow(object, {function_, name}, access));
    const Buffer& buffer = held_.back();
    if (buffer.on_gpu())
      raise_if_failed(unsupported("{}: argument {}: asked for host memory, found GPU {}", function_,
                                  name, buffer.gpu()));
    if (buffer.bytes() != bytes)
      raise_if_failed(invalid_argument("{}: argument {}: asked for {} bytes, found {}", function_,
                                       name, bytes, buffer.bytes()));
    return static_cast<std::byte*>(buffer.data());
  }
  template <typename T>
  const T* read(nb::handle object, const char* name, uint64_t count) {
    if (object.is_none()) return nullptr;
    return reinterpret_cast<const T*>(take(object, name, count * sizeof(T), Access::kRead));
  }
  template <typename T>
  T* write(nb::handle object, const char* name, uint64_t count) {
    if (object.is_none()) return nullptr;
    return reinterpret_cast<T*>(take(object, name, count * sizeof(T), Access::kWrite));
  }

 private:
  const char* function_;
  std::vector<Buffer> held_;
};

constexpr uint64_t kMostCount = uint64_t{1} << 31;

/// A product that no caller's numbers make wrap.
uint64_t times(std::initializer_list<int64_t> factors) {
  uint64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || static_cast<uint64_t>(factor) > kMostCount)
      raise_if_failed(invalid_argument("moe: asked for counts of 0 to 2^31, found {}", factor));
    if (factor != 0 && product > (uint64_t{1} << 62) / static_cast<uint64_t>(factor))
      raise_if_failed(invalid_argument("moe: a shape of more than 2^62 bytes"));
    product *= static_cast<uint64_t>(factor);
  }
  return product;
}

Dtype dtype_of(const std::string& name) { return value_or_raise(parse_dtype(name)); }

/// A low-latency call, from before its first half, as PyBegun is one.
struct PySend {
  Lent lent;
  moe::Buffer::Ticket ticket;
  moe::LowLatencyDispatch dispatch;
  moe::LowLatencyCombine combine;
  bool is_received = false;

  explicit PySend(bool is_combine)
      : lent(is_combine ? "low_latency_combine" : "low_latency_dispatch") {}
};

/// Made before it is begun: its caller can give up what a signal's handler cut off behind begin().
struct PyBegun {
  Lent lent{"dispatch"};
  moe::Dispatch call;
  moe::Incoming incoming;
};

class PyMoeBuffer {
 public:
  PyMoeBuffer(PyComm& comm, uint64_t half_bytes, bool can_shrink) {
    run_unlocked([&] {
      auto made = moe::Buffer::create(comm.get(), {half_bytes, can_shrink});
      if (made.ok()) buffer_ = std::move(made).value();
      return made.status();
    });
  }
  // In a fork there is no proxy's thread to wait for, and links are the parent's to end.
  ~PyMoeBuffer() {
    if (is_forked()) (void)buffer_.release();
  }
  PyMoeBuffer(const PyMoeBuffer&) = delete;
  PyMoeBuffer& operator=(const PyMoeBuffer&) = delete;

  moe::Buffer& get() {
    if (!buffer_) raise_if_failed(invalid_argument("moe buffer: it was destroyed"));
    if (is_forked())
      raise_if_failed(invalid_argument(
          "moe buffer of rank {} was made by process {} and cannot be used in its fork {}",
          buffer_->rank(), process_, getpid()));
    return *buffer_;
  }
  /// call(buffer) without the GIL; it must not be closed meanwhile, by another thread or by what
  /// Python does for a signal while the call waits.
  template <typename Call>
  void run(Call&& call) {
    moe::Buffer& buffer = get();
    const UnderWay under_way(*this);
    run_unlocked([&] { return call(buffer); });
  }
  void close() {
    if (is_forked()) {
      (void)buffer_.release();
      return;
    }
    if (num_under_way_ > 0)
      raise_if_failed(invalid_argument("destroy on rank {}: a call of the buffer is under way",
                                       buffer_->rank()));
    std::unique_ptr<moe::Buffer> ended = std::move(buffer_);
    const Unlocked released;
    ended.reset();
  }
  bool is_closed() const { return buffer_ == nullptr; }
  bool is_in_call() const { return num_under_way_ > 0; }

 private:
  class UnderWay {
   public:
    explicit UnderWay(PyMoeBuffer& buffer) : buffer_(buffer) { ++buffer_.num_under_way_; }
    ~UnderWay() { --buffer_.num_under_way_; }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    PyMoeBuffer& buffer_;
  };
  /// A fork has the windows, too, and they are memory of both.
  bool is_forked() const { return getpid() != process_; }

  const pid_t process_ = getpid();
  std::unique_ptr<moe::Buffer> buffer_;
  int num_under_way_ = 0;  // by who holds the GIL
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
                   nb::handle weights, int num_tokens, int hidden, int num_topk, int max_tokens,
                   int num_experts, const std::string& dtype, int form) {
  moe::LowLatencyDispatch& d = call.dispatch;
  d.dtype = dtype_of(dtype);
  d.hidden = static_cast<uint64_t>(hidden);
  d.num_tokens = num_tokens;
  d.num_topk = num_topk;
  d.max_tokens = max_tokens;
  d.num_experts = num_experts;
  d.form = static_cast<moe::ScaleForm>(form);
  d.x = call.lent.read<std::byte>(
      x, "x", times({num_tokens, hidden, static_cast<int64_t>(dtype_bytes(d.dtype))}));
  d.ids = call.lent.read<int64_t>(ids, "topk_idx", times({num_tokens, num_topk}));
  d.weights = call.lent.read<float>(weights, "topk_weights", times({num_tokens, num_topk}));
  d.has_weights = !weights.is_none();
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
                  nb::handle layout_range, nb::handle ids, nb::handle weights, int num_tokens,
                  int hidden, int num_topk, int max_tokens, int num_experts,
                  const std::string& dtype, uint32_t of_phase, uint64_t ids_hash, nb::handle copies,
                  uint64_t weights_hash) {
  moe::Buffer& buffer = self.get();
  const int n = buffer.size(), l = local_experts(num_experts, n);
  moe::LowLatencyCombine& c = call.combine;
  c.dtype = dtype_of(dtype);
  c.hidden = static_cast<uint64_t>(hidden);
  c.num_tokens = num_tokens;
  c.num_topk = num_topk;
  c.max_tokens = max_tokens;
  c.num_experts = num_experts;
  c.of_phase = of_phase;
  c.ids_hash = ids_hash;
  const uint64_t rows = times({l, max_tokens, n});
  Lent& lent = call.lent;
  c.x = lent.read<std::byte>(x, "x", rows * c.row_bytes());
  c.slots = lent.read<int32_t>(slots, "handle", rows);
  c.layout_range = lent.read<int64_t>(layout_range, "handle", times({l, n}));
  c.ids = lent.read<int64_t>(ids, "topk_idx", times({num_tokens, num_topk}));
  c.weights = lent.read<float>(weights, "topk_weights", times({num_tokens, num_topk}));
  c.copies = copies_of(lent, copies, n, max_tokens, num_topk);
  c.sums_by_rank = c.copies.tokens != nullptr;
  c.weights_hash = weights_hash;
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

void begin(PyMoeBuffer& self, PyBegun& begun, nb::handle x, nb::handle side, nb::handle is_in_rank,
           nb::handle per_expert, nb::handle ids, nb::handle weights, int num_tokens,
           int64_t row_bytes, int64_t side_bytes, int num_topk, int num_experts,
           uint32_t of_phase) {
  moe::Buffer& buffer = self.get();
  Lent& lent = begun.lent;
  moe::Dispatch& d = begun.call;
  d.num_tokens = num_tokens;
  d.row_bytes = static_cast<uint64_t>(row_bytes);
  d.side_bytes = static_cast<uint64_t>(side_bytes);
  d.num_topk = num_topk;
  d.num_experts = num_experts;
  d.of_phase = of_phase;
  d.has_ids = !ids.is_none();
  d.has_weights = !weights.is_none();
  d.x = lent.read<std::byte>(x, "x", times({num_tokens, row_bytes}));
  d.side = lent.read<std::byte>(side, "x scales", times({num_tokens, side_bytes}));
  d.is_in_rank =
      lent.read<bool>(is_in_rank, "is_token_in_rank", times({num_tokens, buffer.size()}));
  d.per_expert = lent.read<int32_t>(per_expert, "num_tokens_per_expert", times({num_experts}));
  d.ids = lent.read<int64_t>(ids, "topk_idx", times({num_tokens, num_topk}));
  d.weights = lent.read<float>(weights, "topk_weights", times({num_tokens, num_topk}));
  self.run([&](moe::Buffer& own) {
    auto incoming = own.begin(d);
    if (incoming.ok()) begun.incoming = std::move(incoming).value();
    return incoming.status();
  });
}

/// Nothing where it was not begun, or is over.
void abandon(PyMoeBuffer& self, const PyBegun& begun) {
  if (begun.incoming.phase != 0) self.get().abandon(begun.incoming.phase);
}

void finish(PyMoeBuffer& self, PyBegun& begun, nb::handle x, nb::handle side, nb::handle ids,
            nb::handle weights, nb::handle source_token, int num_rows) {
  const moe::Dispatch& d = begun.call;
  Lent lent("dispatch");
  moe::DispatchedRows out;
  const auto rows = static_cast<uint64_t>(num_rows);
  out.x = lent.write<std::byte>(x, "recv_x", rows * d.row_bytes);
  out.side = lent.write<std::byte>(side, "recv_x scales", rows * d.side_bytes);
  out.ids = lent.write<int64_t>(ids, "recv_topk_idx", times({num_rows, d.num_topk}));
  out.weights = lent.write<float>(weights, "recv_topk_weights", times({num_rows, d.num_topk}));
  out.source_token = lent.write<int32_t>(source_token, "recv_src_idx", rows);
  out.num_rows = num_rows;
  self.run([&](moe::Buffer& buffer) { return buffer.finish(d, out); });
}

void combine(PyMoeBuffer& self, nb::handle x, nb::handle weights,
             const std::vector<int32_t>& rows_of, nb::handle source_token, nb::handle is_in_rank,
             nb::handle bias_0, nb::handle bias_1, nb::handle out, nb::handle out_weights,
             int num_rows, int num_tokens, int hidden, int num_topk, const std::string& dtype,
             int most_tokens, uint32_t of_phase, bool sums_by_node) {
  moe::Buffer& buffer = self.get();
  Lent lent("combine");
  moe::Combine c;
  c.dtype = dtype_of(dtype);
  c.hidden = static_cast<uint64_t>(hidden);
  c.num_topk = num_topk;
  c.rows_of = rows_of;
  c.num_rows = num_rows;
  c.num_tokens = num_tokens;
  c.most_tokens = most_tokens;
  c.of_phase = of_phase;
  c.sums_by_node = sums_by_node;
  c.has_weights = !weights.is_none();
  c.x = lent.read<std::byte>(x, "x", static_cast<uint64_t>(num_rows) * c.row_bytes());
  c.weights = lent.read<float>(weights, "topk_weights", times({num_rows, num_topk}));
  c.source_token = lent.read<int32_t>(source_token, "handle", static_cast<uint64_t>(num_rows));
  c.is_in_rank = lent.read<bool>(is_in_rank, "handle", times({num_tokens, buffer.size()}));
  const uint64_t own = static_cast<uint64_t>(num_tokens) * c.row_bytes();
  c.biases[0] = lent.read<std::byte>(bias_0, "bias", own);
  c.biases[1] = lent.read<std::byte>(bias_1, "bias", own);
  c.out = lent.write<std::byte>(out, "combined_x", own);
  c.out_weights =
      lent.write<float>(out_weights, "combined_topk_weights", times({num_tokens, num_topk}));
  self.run([&](moe::Buffer& at) { return at.combine(c); });
}

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

void check_dispatch(int rank, const moe::WindowLayout& layout, int num_tokens, int hidden,
                    int num_topk, int max_tokens, int num_experts, const std::string& dtype,
                    int form, bool has_weights) {
  moe::LowLatencyDispatch d;
  d.dtype = dtype_of(dtype);
  d.hidden = static_cast<uint64_t>(hidden);
  d.has_weights = has_weights;
  d.num_tokens = num_tokens;
  d.num_topk = num_topk;
  d.max_tokens = max_tokens;
  d.num_experts = num_experts;
  d.form = static_cast<moe::ScaleForm>(form);
  Status status = moe::check_shape(d, layout.num_ranks);
  if (status.ok()) status = moe::check_room(d, layout);
  raise_if_failed(status.with_context(fmt::format("low_latency_dispatch on rank {}", rank)));
}

void register_moe(nb::module_& module) {
  nb::module_ inner = module.def_submodule("moe", "Dispatch and combine");
  inner.def("layout", &layout);
  inner.def("ids_hash", &ids_hash);
  inner.def("weights_hash", &weights_hash);
  inner.def("low_latency_half_bytes", &moe::low_latency_half_bytes);
  register_moe_gpu(inner);
  nb::class_<PySend>(inner, "Send")
      .def(nb::init<bool>())
      .def_prop_ro("phase", [](const PySend& self) { return self.ticket.phase; });
  nb::class_<PyBegun>(inner, "Begun")
      .def(nb::init<>())
      .def_prop_ro("rows_of", [](const PyBegun& self) { return self.incoming.rows_of; })
      .def_prop_ro("rank_prefix", [](const PyBegun& self) { return self.incoming.rank_prefix; })
      .def_prop_ro("per_expert", [](const PyBegun& self) { return self.incoming.per_expert; })
      .def_prop_ro("num_rows", [](const PyBegun& self) { return self.incoming.num_rows; })
      .def_prop_ro("most_tokens", [](const PyBegun& self) { return self.incoming.most_tokens; })
      .def_prop_ro("phase", [](const PyBegun& self) { return self.incoming.phase; });
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
  type.def("check_dispatch",
           [](PyMoeBuffer& self, int num_tokens, int hidden, int num_topk, int max_tokens,
              int num_experts, const std::string& dtype, int form, bool has_weights) {
             check_dispatch(self.get().rank(), self.get().layout(), num_tokens, hidden, num_topk,
                            max_tokens, num_experts, dtype, form, has_weights);
           });
  type.def("send_dispatch", &send_dispatch, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  type.def("receive_dispatch", &receive_dispatch, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none());
  type.def("send_combine", &send_combine, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::arg());
  type.def("drop", &drop);
  type.def("receive_combine", &receive_combine, nb::arg(), nb::arg(), nb::arg().none());
  type.def("begin", &begin, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg());
  type.def("finish", &finish, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg());
  type.def("abandon", &abandon);
  type.def("combine", &combine, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace braid::python
