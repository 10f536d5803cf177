// Checksums of memory, where it lies and without the GIL.
#include <algorithm>
#include <span>

#include "base/crc64.h"
#include "buffer.h"
#include "comm.h"
#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

std::span<const std::byte> bytes_of(const Buffer& buffer, const char* name) {
  if (buffer.on_gpu())
    raise_if_failed(unsupported("{}: argument data: asked for host memory, found memory of GPU {}",
                                name, buffer.gpu()));
  return {static_cast<const std::byte*>(buffer.data()), buffer.bytes()};
}

uint64_t sum(const nb::object& object, uint64_t before) {
  const Buffer buffer = Buffer::borrow(object, {"crc64", "data"}, Access::kRead);
  const auto bytes = bytes_of(buffer, "crc64");
  const Unlocked released;
  return crc64(bytes, before);
}

uint64_t sum_of_runs(const nb::object& object, const nb::object& begins, uint64_t run_bytes,
                     uint64_t before) {
  const char* const name = "crc64_of_runs";
  const Buffer buffer = Buffer::borrow(object, {name, "data"}, Access::kRead);
  const Buffer places = Buffer::borrow(begins, {name, "begins"}, Access::kRead);
  const auto bytes = bytes_of(buffer, name);
  if (places.type_name() != "uint64" || places.on_gpu())
    raise_if_failed(invalid_argument("{}: argument begins: asked for uint64 of the host, found {}",
                                     name, places.type_name()));
  const std::span at(static_cast<const uint64_t*>(places.data()), places.count());
  const uint64_t last = at.empty() ? 0 : *std::max_element(at.begin(), at.end());
  if (!at.empty() && (run_bytes > bytes.size() || last > bytes.size() - run_bytes))
    raise_if_failed(invalid_argument("{}: a run of {} bytes from {} on, of {} bytes", name,
                                     run_bytes, last, bytes.size()));
  const Unlocked released;
  return crc64_of_runs(bytes.data(), at, run_bytes, before);
}

}  // namespace

void register_checksum(nb::module_& module) {
  module.def("crc64", &sum, nb::arg(), nb::arg() = 0);
  module.def("crc64_of_runs", &sum_of_runs, nb::arg(), nb::arg(), nb::arg(), nb::arg() = 0);
}

}  // namespace braid::python
