// What pieces carry in tests: bytes of which every one depends on the piece's key and on its
// position, so that one of another piece or place shows. Eight at a time, because a test that moves
// megabytes would otherwise spend its time here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/tensors.h"

namespace braid::test {

/// `key` tells pieces apart: what sends it, to whom, and its number.
inline std::vector<std::byte> piece_bytes_of(uint64_t key, size_t bytes) {
  std::vector<std::byte> piece(bytes);
  uint64_t word = mixed(key, 0, 0);
  for (size_t at = 0; at < bytes; at += sizeof word, word += 0x9e3779b97f4a7c15)
    std::memcpy(piece.data() + at, &word, std::min(sizeof word, bytes - at));
  return piece;
}

}  // namespace braid::test
