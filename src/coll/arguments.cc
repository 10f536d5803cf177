#include "coll/arguments.h"

namespace braid::coll {

Result<uint64_t> buffer_bytes(uint64_t count, uint64_t num_blocks, Dtype dtype) {
  if (!is_valid(dtype)) return invalid_argument("dtype {} is unknown", static_cast<int>(dtype));
  constexpr uint64_t kMost = uint64_t{1} << 62;
  const uint64_t element_bytes = dtype_bytes(dtype) * num_blocks;
  if (element_bytes != 0 && count > kMost / element_bytes)
    return invalid_argument("count {} of {} in {} blocks is more than 2^62 bytes", count,
                            dtype_name(dtype), num_blocks);
  return count * element_bytes;
}

Result<uint64_t> blocks_bytes(const char* name, std::span<const uint64_t> counts, int num_ranks,
                              Dtype dtype) {
  if (counts.size() != static_cast<size_t>(num_ranks))
    return invalid_argument("{} has {} entries, the comm has {} ranks", name, counts.size(),
                            num_ranks);
  uint64_t total = 0;
  for (uint64_t count : counts) {
    BRAID_ASSIGN_OR_RETURN(const uint64_t bytes, buffer_bytes(count, 1, dtype));
    total += bytes;
    if (total > uint64_t{1} << 62) return invalid_argument("{} sum to more than 2^62 bytes", name);
  }
  return total;
}

Status check_buffer(const Buffer& buffer) {
  if (buffer.bytes > 0 && buffer.data == nullptr)
    return invalid_argument("{} is null; {} bytes are needed", buffer.name, buffer.bytes);
  return {};
}

Status check_disjoint(const Buffer& a, const Buffer& b) {
  const auto a0 = reinterpret_cast<uintptr_t>(a.data);
  const auto b0 = reinterpret_cast<uintptr_t>(b.data);
  if (a.bytes == 0 || b.bytes == 0 || a0 + a.bytes <= b0 || b0 + b.bytes <= a0) return {};
  return invalid_argument(
      "{} ({} bytes) and {} ({} bytes) overlap; they must be disjoint or exactly in place", a.name,
      a.bytes, b.name, b.bytes);
}

Status check_in_place_or_apart(const Buffer& part, const Buffer& whole, uint64_t offset_bytes) {
  if (whole.data != nullptr && part.data == bytes_at(whole.data, offset_bytes)) return {};
  return check_disjoint(part, whole);
}

Status check_redop(RedOp op) {
  if (is_valid(op)) return {};
  return invalid_argument("reduction op {} is unknown", static_cast<int>(op));
}

Status check_root(int root, int num_ranks) {
  if (root >= 0 && root < num_ranks) return {};
  return invalid_argument("root is {}, with {} ranks it must be 0 to {}", root, num_ranks,
                          num_ranks - 1);
}

}  // namespace braid::coll
