// The collectives over Python buffers, but for those with a root or uneven blocks (rooted.cc). Each
// function borrows its buffers (which checks them one by one), checks them against each other
// (call.h), releases the GIL, and calls coll/. Shapes are python/braid's business: here a buffer is
// a run of elements.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "call.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "coll/device/explain.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "comm.h"
#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

void all_gather(PyComm& self, nb::handle send_object, nb::handle out_object, uint64_t stream) {
  const char* const name = "all_gather";
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  comm::Comm& comm = self.get();
  check_out(name, out, send, send.count() * static_cast<uint64_t>(comm.size()));
  check_overlap(name, send, "send", out, "out", static_cast<uint64_t>(comm.rank()) * send.bytes());
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::all_gather(device, address_of(send), address_of(out),
                                        send.wire_count(), send.wire_dtype(), stream_of(stream));
      },
      [&] {
        return coll::all_gather(comm, send.data(), out.data(), send.wire_count(),
                                send.wire_dtype());
      });
}

void all_reduce(PyComm& self, nb::handle send_object, nb::handle out_object,
                const std::string& op_name, uint64_t stream) {
  const char* const name = "all_reduce";
  const bool is_in_place = send_object.is(out_object);
  const Buffer send =
      Buffer::borrow(send_object, {name, "buf"}, is_in_place ? Access::kWrite : Access::kRead);
  const Buffer out = is_in_place ? send : Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  const Dtype dtype = reducible(name, send);
  const RedOp op = op_of(name, op_name);
  check_out(name, out, send, send.count());
  check_overlap(name, send, "send", out, "out");
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::all_reduce(device, address_of(send), address_of(out), send.count(),
                                        dtype, op, stream_of(stream));
      },
      [&] {
        return coll::all_reduce(self.get(), send.data(), out.data(), send.count(), dtype, op);
      });
}

void reduce_scatter(PyComm& self, nb::handle send_object, nb::handle out_object,
                    const std::string& op_name, uint64_t stream) {
  const char* const name = "reduce_scatter";
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  const Dtype dtype = reducible(name, send);
  const RedOp op = op_of(name, op_name);
  comm::Comm& comm = self.get();
  check_blocks(name, send, comm.size());
  const uint64_t count = send.count() / static_cast<uint64_t>(comm.size());
  check_out(name, out, send, count);
  check_overlap(name, out, "out", send, "send", static_cast<uint64_t>(comm.rank()) * out.bytes());
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::reduce_scatter(device, address_of(send), address_of(out), count, dtype,
                                            op, stream_of(stream));
      },
      [&] { return coll::reduce_scatter(comm, send.data(), out.data(), count, dtype, op); });
}

coll::BitOp bit_op_of(const std::string& name) {
  for (const auto op : {coll::BitOp::kBand, coll::BitOp::kBor, coll::BitOp::kBxor})
    if (name == coll::bit_op_name(op)) return op;
  if (!name.empty())
    raise_if_failed(
        invalid_argument("all_to_all: asked for the bitwise operator {}, which is none", name));
  return coll::BitOp::kNone;
}

void all_to_all(PyComm& self, nb::handle send_object, nb::handle out_object, uint64_t stream,
                const std::string& bit_op) {
  const char* const name = "all_to_all";
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  comm::Comm& comm = self.get();
  check_blocks(name, send, comm.size());
  check_out(name, out, send, send.count());
  check_overlap(name, send, "send", out, "out");
  const uint64_t count = send.wire_count() / static_cast<uint64_t>(comm.size());
  const auto bits = bit_op_of(bit_op);
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::all_to_all(device, address_of(send), address_of(out), count,
                                        send.wire_dtype(), stream_of(stream), bits);
      },
      [&] {
        return coll::all_to_all(comm, send.data(), out.data(), count, send.wire_dtype(), bits);
      });
}

void all_to_all_v(PyComm& self, nb::handle send_object, const std::vector<uint64_t>& send_counts,
                  nb::handle out_object, const std::vector<uint64_t>& recv_counts,
                  uint64_t stream) {
  const char* const name = "all_to_all";
  const Buffer send = Buffer::borrow(send_object, {name, "send"}, Access::kRead);
  const Buffer out = Buffer::borrow(out_object, {name, "out"}, Access::kWrite);
  comm::Comm& comm = self.get();
  check_out(name, out, send, out.count());
  const std::vector<uint64_t> sent =
      wire_counts({name, "send_counts"}, send_counts, send, comm.size());
  const std::vector<uint64_t> received =
      wire_counts({name, "recv_counts"}, recv_counts, out, comm.size());
  run(
      self, name, send, out,
      [&](comm::Device& device) {
        return coll::device::all_to_all_v(device, address_of(send), sent, address_of(out), received,
                                          send.wire_dtype(), stream_of(stream));
      },
      [&] {
        return coll::all_to_all_v(comm, send.data(), sent, out.data(), received, send.wire_dtype());
      });
}

void broadcast(PyComm& self, nb::handle object, int root, uint64_t stream) {
  const Buffer buf = Buffer::borrow(object, {"broadcast", "buf"}, Access::kWrite);
  run(
      self, "broadcast", buf, buf,
      [&](comm::Device& device) {
        return coll::device::broadcast(device, address_of(buf), address_of(buf), buf.wire_count(),
                                       buf.wire_dtype(), root, stream_of(stream));
      },
      [&] {
        return coll::broadcast(self.get(), buf.data(), buf.wire_count(), buf.wire_dtype(), root);
      });
}

void barrier(PyComm& self) {
  run_unlocked([&] { return coll::barrier(self.get()); });
}

/// Shares a GPU buffer with all ranks, so that results land in it directly.
void register_memory(PyComm& self, nb::handle object) {
  const Buffer buf = Buffer::borrow(object, {"register", "buf"}, Access::kWrite);
  if (!buf.on_gpu()) raise_if_failed(invalid_argument("register: asked for GPU memory"));
  run_unlocked([&] {
    return coll::device::on_device(self.get(), buf.gpu(), [&](comm::Device& device) {
      return device.registrations().add(address_of(buf), buf.bytes());
    });
  });
}

void unregister_memory(PyComm& self, nb::handle object) {
  const Buffer buf = Buffer::borrow(object, {"unregister", "buf"}, Access::kWrite);
  if (!buf.on_gpu()) raise_if_failed(invalid_argument("unregister: asked for GPU memory"));
  run_unlocked([&] {
    return coll::device::on_device(self.get(), buf.gpu(), [&](comm::Device& device) {
      return device.registrations().remove(address_of(buf));
    });
  });
}

void force_host_share(PyComm& self, int gpu, const std::string& op, std::optional<double> share) {
  const Result<plan::Op> parsed = plan::parse_op(op);
  raise_if_failed(parsed.status());
  run_unlocked([&] {
    return coll::device::on_device(self.get(), gpu, [&](comm::Device& device) {
      device.links().main().shares().force(parsed.value(), share);
      return Status();
    });
  });
}

double host_share(PyComm& self, int gpu, const std::string& op) {
  const Result<plan::Op> parsed = plan::parse_op(op);
  raise_if_failed(parsed.status());
  double share = 0;
  run_unlocked([&] {
    return coll::device::on_device(self.get(), gpu, [&](comm::Device& device) {
      share = device.links().main().shares().tuned(parsed.value()).long_share;
      return Status();
    });
  });
  return share;
}

nb::tuple explain_gpu(PyComm& self, const std::string& op, uint64_t bytes) {
  const Result<plan::Op> parsed = plan::parse_op(op);
  raise_if_failed(parsed.status());
  const auto explained = coll::device::explain(self.get(), parsed.value(), bytes);
  raise_if_failed(explained.status());
  return nb::make_tuple(coll::device::to_words(explained.value()),
                        coll::device::to_json(explained.value()));
}

}  // namespace

void register_collectives(nb::module_& module) {
  // none(): so that None is refused by Buffer::borrow, in the same words as every other object that
  // is no array.
  const auto send = nb::arg("send").none();
  const auto out = nb::arg("out").none();
  const auto stream = nb::arg("stream") = 0;
  module.def("all_gather", &all_gather, nb::arg("comm"), send, out, stream);
  module.def("all_reduce", &all_reduce, nb::arg("comm"), send, out, nb::arg("op"), stream);
  module.def("reduce_scatter", &reduce_scatter, nb::arg("comm"), send, out, nb::arg("op"), stream);
  module.def("all_to_all", &all_to_all, nb::arg("comm"), send, out, stream, nb::arg("bit_op") = "");
  module.def("all_to_all_v", &all_to_all_v, nb::arg("comm"), send, nb::arg("send_counts"), out,
             nb::arg("recv_counts"), stream);
  module.def("broadcast", &broadcast, nb::arg("comm"), nb::arg("buf").none(), nb::arg("root"),
             stream);
  module.def("barrier", &barrier, nb::arg("comm"));
  module.def("register_memory", &register_memory, nb::arg("comm"), nb::arg("buf").none());
  module.def("unregister_memory", &unregister_memory, nb::arg("comm"), nb::arg("buf").none());
  module.def("force_host_share", &force_host_share, nb::arg("comm"), nb::arg("gpu"), nb::arg("op"),
             nb::arg("share").none());
  module.def("explain_gpu", &explain_gpu, nb::arg("comm"), nb::arg("op"), nb::arg("nbytes"));
  module.def("host_share", &host_share, nb::arg("comm"), nb::arg("gpu"), nb::arg("op"));
}

}  // namespace braid::python
