// Collectives with a root, and those with blocks of several lengths.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "buffer.h"
#include "call.h"
#include "coll/all_gather/all_gather.h"
#include "coll/arguments.h"
#include "coll/device/collectives.h"
#include "coll/gather/gather.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/rooted_reduce/rooted_reduce.h"
#include "coll/scatter/scatter.h"
#include "comm.h"
#include "errors.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

using Counts = std::vector<uint64_t>;

void check_root(const char* function, PyComm& self, int root) {
  raise_if_failed(coll::check_root(root, self.get().size()).with_context(function));
}

/// Root's buffer, which other ranks need not have: theirs are ignored.
std::optional<Buffer> at_root(PyComm& self, int root, nb::handle object, const Argument& argument,
                              Access access) {
  if (self.get().rank() != root) return std::nullopt;
  return Buffer::borrow(object, argument, access);
}

void* data_of(const std::optional<Buffer>& buffer) { return buffer ? buffer->data() : nullptr; }
sys::DevicePtr address_of(const std::optional<Buffer>& buffer) {
  return reinterpret_cast<sys::DevicePtr>(data_of(buffer));
}

void reduce(PyComm& self, nb::handle send_object, nb::handle out_object, const std::string& op_name,
            int root, uint64_t stream) {
  const char* const name = "reduce";
  check_root(name, self, root);
  const bool is_in_place = self.get().rank() == root && send_object.is(out_object);
  const Buffer send =
      Buffer::borrow(send_object, {name, "buf"}, is_in_place ? Access::kWrite : Access::kRead);
  const Dtype dtype = reducible(name, send);
  const RedOp op = op_of(name, op_name);
  const std::optional<Buffer> out =
      is_in_place ? send : at_root(self, root, out_object, {name, "out"}, Access::kWrite);
  if (out) check_out(name, *out, send, send.count());
  if (out) check_overlap(name, send, "buf", *out, "out");
  run(
      self, name, send, out.value_or(send),
      [&](comm::Device& device) {
        return coll::device::rooted_reduce(device, python::address_of(send), address_of(out),
                                           send.count(), dtype, op, root, stream_of(stream));
      },
      [&] {
        return coll::rooted_reduce(self.get(), send.data(), data_of(out), send.count(), dtype, op,
                                   root);
      });
}

void gather(PyComm& self, nb::handle send_object, nb::handle out_object, int root,
            uint64_t stream) {
  const char* const name = "gather";
  check_root(name, self, root);
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const std::optional<Buffer> out = at_root(self, root, out_object, {name, "out"}, Access::kWrite);
  if (out) {
    check_out(name, *out, send, send.count() * static_cast<uint64_t>(self.get().size()));
    check_overlap(name, send, "send", *out, "out", static_cast<uint64_t>(root) * send.bytes());
  }
  run(
      self, name, send, out.value_or(send),
      [&](comm::Device& device) {
        return coll::device::gather(device, python::address_of(send), address_of(out),
                                    send.wire_count(), send.wire_dtype(), root, stream_of(stream));
      },
      [&] {
        return coll::gather(self.get(), send.data(), data_of(out), send.wire_count(),
                            send.wire_dtype(), root);
      });
}

void scatter(PyComm& self, nb::handle send_object, nb::handle out_object, int root,
             uint64_t stream) {
  const char* const name = "scatter";
  check_root(name, self, root);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  const std::optional<Buffer> send =
      at_root(self, root, send_object, {name, "send"}, Access::kRead);
  if (send) {
    check_blocks(name, *send, self.get().size());
    check_out(name, out, *send, send->count() / static_cast<uint64_t>(self.get().size()));
    check_overlap(name, out, "out", *send, "send", static_cast<uint64_t>(root) * out.bytes());
  }
  run(
      self, name, send.value_or(out), out,
      [&](comm::Device& device) {
        return coll::device::scatter(device, address_of(send), python::address_of(out),
                                     out.wire_count(), out.wire_dtype(), root, stream_of(stream));
      },
      [&] {
        return coll::scatter(self.get(), data_of(send), out.data(), out.wire_count(),
                             out.wire_dtype(), root);
      });
}

/// Counts of wire elements that sum to those of `whole`, and the bytes before this rank's block,
/// which must be as long as `part`.
struct Uneven {
  Counts counts;
  uint64_t begin_bytes = 0;
};
Uneven uneven_of(const char* function, PyComm& self, const Counts& counts, const Buffer& whole,
                 const char* part_name, const Buffer& part) {
  Uneven uneven{wire_counts({function, "counts"}, counts, whole, self.get().size()), 0};
  const auto rank = static_cast<size_t>(self.get().rank());
  if (part.count() != counts[rank])
    raise_if_failed(
        invalid_argument("{}: argument {}: asked for counts[{}] = {} elements, found {}", function,
                         part_name, rank, counts[rank], part.count()));
  const auto own = uneven.counts.begin() + static_cast<std::ptrdiff_t>(rank);
  uneven.begin_bytes =
      std::accumulate(uneven.counts.begin(), own, uint64_t{0}) * dtype_bytes(whole.wire_dtype());
  return uneven;
}

void all_gather_v(PyComm& self, nb::handle send_object, nb::handle out_object, const Counts& counts,
                  uint64_t stream) {
  const char* const name = "all_gather";
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  check_out(name, out, send, out.count());
  const Uneven uneven = uneven_of(name, self, counts, out, "send", send);
  check_overlap(name, send, "send", out, "out", uneven.begin_bytes);
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::all_gather_v(device, python::address_of(send), python::address_of(out),
                                          uneven.counts, send.wire_dtype(), stream_of(stream));
      },
      [&] {
        return coll::all_gather_v(self.get(), send.data(), out.data(), uneven.counts,
                                  send.wire_dtype());
      });
}

void reduce_scatter_v(PyComm& self, nb::handle send_object, nb::handle out_object,
                      const std::string& op_name, const Counts& counts, uint64_t stream) {
  const char* const name = "reduce_scatter";
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  const Dtype dtype = reducible(name, send);
  const RedOp op = op_of(name, op_name);
  check_out(name, out, send, out.count());
  const Uneven uneven = uneven_of(name, self, counts, send, "out", out);
  check_overlap(name, out, "out", send, "send", uneven.begin_bytes);
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::reduce_scatter_v(device, python::address_of(send),
                                              python::address_of(out), uneven.counts, dtype, op,
                                              stream_of(stream));
      },
      [&] {
        return coll::reduce_scatter_v(self.get(), send.data(), out.data(), uneven.counts, dtype,
                                      op);
      });
}

}  // namespace

void register_rooted(nb::module_& module) {
  const auto send = nb::arg("send").none();
  const auto out = nb::arg("out").none();
  const auto stream = nb::arg("stream") = 0;
  module.def("reduce", &reduce, nb::arg("comm"), send, out, nb::arg("op"), nb::arg("root"), stream);
  module.def("gather", &gather, nb::arg("comm"), send, out, nb::arg("root"), stream);
  module.def("scatter", &scatter, nb::arg("comm"), send, out, nb::arg("root"), stream);
  module.def("all_gather_v", &all_gather_v, nb::arg("comm"), send, out, nb::arg("counts"), stream);
  module.def("reduce_scatter_v", &reduce_scatter_v, nb::arg("comm"), send, out, nb::arg("op"),
             nb::arg("counts"), stream);
}

}  // namespace braid::python
