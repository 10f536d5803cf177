// Normal calls over Python buffers.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "moe.h"
#include "moe_buffer.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

/// Made before it is begun: its caller can give up what a signal's handler cut off behind begin().
struct PyBegun {
  Lent lent{"dispatch"};
  moe::Dispatch call;
  moe::Incoming incoming;
};

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

}  // namespace

void register_normal(nb::module_& inner, nb::class_<PyMoeBuffer>& type) {
  nb::class_<PyBegun>(inner, "Begun")
      .def(nb::init<>())
      .def_prop_ro("rows_of", [](const PyBegun& self) { return self.incoming.rows_of; })
      .def_prop_ro("rank_prefix", [](const PyBegun& self) { return self.incoming.rank_prefix; })
      .def_prop_ro("per_expert", [](const PyBegun& self) { return self.incoming.per_expert; })
      .def_prop_ro("num_rows", [](const PyBegun& self) { return self.incoming.num_rows; })
      .def_prop_ro("most_tokens", [](const PyBegun& self) { return self.incoming.most_tokens; })
      .def_prop_ro("phase", [](const PyBegun& self) { return self.incoming.phase; });
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
