// Checks on the arguments of collectives and messages, shared by all of them: everything that one rank can know is
// wrong alone. What only several ranks together can know (different counts, ops, roots) is found by
// the entries of the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"

namespace braid::coll {

/// One buffer of a call, for messages.
struct Buffer {
  const char* name;
  const void* data;
  uint64_t bytes;
};

/// count * num_blocks * size of dtype without overflow; invalid_argument for an unknown dtype or
/// over 2^62 bytes.
Result<uint64_t> buffer_bytes(uint64_t count, uint64_t num_blocks, Dtype dtype);
/// Bytes of blocks of `counts` elements, one per rank; invalid_argument for another number of them
/// or over 2^62 bytes. `name` is the argument's.
Result<uint64_t> blocks_bytes(const char* name, std::span<const uint64_t> counts, int num_ranks,
                              Dtype dtype);
/// Not null unless empty.
Status check_buffer(const Buffer& buffer);
/// The two share no byte.
Status check_disjoint(const Buffer& a, const Buffer& b);
/// The same, or `part` is at its own place in `whole`, so many bytes into it.
Status check_in_place_or_apart(const Buffer& part, const Buffer& whole, uint64_t offset_bytes);
Status check_redop(RedOp op);
Status check_root(int root, int num_ranks);

inline const std::byte* bytes_at(const void* data, uint64_t offset_bytes) {
  return static_cast<const std::byte*>(data) + offset_bytes;
}
inline std::byte* bytes_at(void* data, uint64_t offset_bytes) {
  return static_cast<std::byte*>(data) + offset_bytes;
}

}  // namespace braid::coll
