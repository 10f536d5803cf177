#include "call.h"

#include <fmt/ranges.h>

#include "coll/arguments.h"

namespace braid::python {

sys::Stream stream_of(uint64_t handle) {
  return {reinterpret_cast<void*>(handle)};  // NOLINT(performance-no-int-to-ptr)
}
sys::DevicePtr address_of(const Buffer& buffer) {
  return reinterpret_cast<sys::DevicePtr>(buffer.data());
}

void check_out(const char* function, const Buffer& out, const Buffer& send, uint64_t count) {
  if (out.type_name() != send.type_name())
    raise_if_failed(invalid_argument("{}: argument out: asked for {} like send, found {}", function,
                                     send.type_name(), out.type_name()));
  if (out.count() != count)
    raise_if_failed(
        invalid_argument("{}: argument out: asked for {} elements of {} (send has {}), found {}",
                         function, count, send.type_name(), send.count(), out.count()));
}

void check_blocks(const char* function, const Buffer& send, int size) {
  if (send.count() % static_cast<uint64_t>(size) != 0)
    raise_if_failed(invalid_argument(
        "{}: argument send: asked for a multiple of {} elements (one block per rank), found {}",
        function, size, send.count()));
}

void check_overlap(const char* function, const Buffer& part, const char* part_name,
                   const Buffer& whole, const char* whole_name, uint64_t offset_bytes) {
  raise_if_failed(coll::check_in_place_or_apart({part_name, part.data(), part.bytes()},
                                                {whole_name, whole.data(), whole.bytes()},
                                                offset_bytes)
                      .with_context(function));
}

Dtype reducible(const char* function, const Buffer& buffer) {
  if (!buffer.dtype())
    raise_if_failed(invalid_argument(
        "{}: asked to reduce elements of type {}; braid reduces int8 to uint64, float16, "
        "bfloat16, float32, float64, float8_e4m3fn and float8_e5m2",
        function, buffer.type_name()));
  return *buffer.dtype();
}

RedOp op_of(const char* function, const std::string& op) {
  const Result<RedOp> parsed = parse_redop(op);
  raise_if_failed(parsed.status().with_context(function));
  return parsed.value();
}

std::vector<uint64_t> wire_counts(const Argument& argument, const std::vector<uint64_t>& counts,
                                  const Buffer& buffer, int size) {
  if (counts.size() != static_cast<size_t>(size))
    raise_if_failed(
        invalid_argument("{}: argument {}: asked for {} counts (one per rank), found {}",
                         argument.function, argument.name, size, counts.size()));
  uint64_t left = buffer.count();  // counted down, so that huge counts cannot wrap a sum
  bool is_exact = true;
  for (const uint64_t count : counts) {
    is_exact = is_exact && count <= left;
    left -= is_exact ? count : 0;
  }
  if (!is_exact || left != 0)
    raise_if_failed(invalid_argument(
        "{}: argument {}: asked for counts that sum to the buffer's {} elements, found [{}]",
        argument.function, argument.name, buffer.count(), fmt::join(counts, ", ")));
  std::vector<uint64_t> wire(counts);
  for (uint64_t& count : wire) count *= buffer.wire_per_item();
  return wire;
}

}  // namespace braid::python
