// The collectives on GPU memory by addresses, for callers that know their buffers already: what
// borrowing them through DLPack costs is more than what the call costs. Nothing is checked here but
// codes: lengths are a tensor's own, and what buffers that overlap give is up to the caller, as
// with torch's other backends. Counts are those of the C interface: a block's, in elements.
#include <nanobind/stl/string.h>

#include <string>

#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "comm.h"
#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

namespace device = coll::device;

sys::Stream stream_at(uint64_t handle) {
  return {reinterpret_cast<void*>(handle)};  // NOLINT(performance-no-int-to-ptr)
}

Dtype dtype_of(uint8_t code) {
  const auto dtype = static_cast<Dtype>(code);
  if (!is_valid(dtype)) raise_if_failed(invalid_argument("dtype {} is unknown", code));
  return dtype;
}

RedOp redop_of(uint8_t code) {
  const auto op = static_cast<RedOp>(code);
  if (!is_valid(op)) raise_if_failed(invalid_argument("reduction op {} is unknown", code));
  return op;
}

template <typename Call>
void enqueue(PyComm& self, const char* function, int gpu, Call&& call) {
  run_unlocked([&] { return device::on_device(self.get(), gpu, call).with_context(function); });
}

void all_gather_on(PyComm& self, int gpu, uint64_t send, uint64_t recv, uint64_t count,
                   uint8_t dtype_code, uint64_t stream) {
  const Dtype dtype = dtype_of(dtype_code);
  enqueue(self, "all_gather", gpu, [&](comm::Device& on) {
    return device::all_gather(on, send, recv, count, dtype, stream_at(stream));
  });
}

void all_reduce_on(PyComm& self, int gpu, uint64_t send, uint64_t recv, uint64_t count,
                   uint8_t dtype_code, uint8_t op_code, uint64_t stream) {
  const Dtype dtype = dtype_of(dtype_code);
  const RedOp op = redop_of(op_code);
  enqueue(self, "all_reduce", gpu, [&](comm::Device& on) {
    return device::all_reduce(on, send, recv, count, dtype, op, stream_at(stream));
  });
}

void reduce_scatter_on(PyComm& self, int gpu, uint64_t send, uint64_t recv, uint64_t count,
                       uint8_t dtype_code, uint8_t op_code, uint64_t stream) {
  const Dtype dtype = dtype_of(dtype_code);
  const RedOp op = redop_of(op_code);
  enqueue(self, "reduce_scatter", gpu, [&](comm::Device& on) {
    return device::reduce_scatter(on, send, recv, count, dtype, op, stream_at(stream));
  });
}

void all_to_all_on(PyComm& self, int gpu, uint64_t send, uint64_t recv, uint64_t count,
                   uint8_t dtype_code, uint64_t stream) {
  const Dtype dtype = dtype_of(dtype_code);
  enqueue(self, "all_to_all", gpu, [&](comm::Device& on) {
    return device::all_to_all(on, send, recv, count, dtype, stream_at(stream));
  });
}

void broadcast_on(PyComm& self, int gpu, uint64_t buf, uint64_t count, uint8_t dtype_code, int root,
                  uint64_t stream) {
  const Dtype dtype = dtype_of(dtype_code);
  enqueue(self, "broadcast", gpu, [&](comm::Device& on) {
    return device::broadcast(on, buf, buf, count, dtype, root, stream_at(stream));
  });
}

template <typename Code>
int code_of(const Result<Code>& parsed) {
  raise_if_failed(parsed.status());
  return static_cast<int>(parsed.value());
}

}  // namespace

void register_on_stream(nb::module_& module) {
  module.def("dtype_code", [](const std::string& name) { return code_of(parse_dtype(name)); });
  module.def("redop_code", [](const std::string& name) { return code_of(parse_redop(name)); });
  module.def("all_gather_on", &all_gather_on);
  module.def("all_reduce_on", &all_reduce_on);
  module.def("reduce_scatter_on", &reduce_scatter_on);
  module.def("all_to_all_on", &all_to_all_on);
  module.def("broadcast_on", &broadcast_on);
}

}  // namespace braid::python
