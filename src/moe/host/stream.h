// Stream: what is put for ranks behind a link, as one sequence of bytes to the rank that lands it, so
// that it can be cut into pieces anywhere. A record is
//
//   bytes, number of places    8 bytes each
//   places                     rank and offset in its window, 8 bytes each
//   bytes                      which are to lie at every place
//
// Nothing in it is believed: StreamReader answers an error where a record is no record, and whoever
// lands it checks every place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"

namespace braid::moe {

struct StreamRecord {
  uint64_t bytes = 0;
  uint64_t num_places = 0;
};
struct StreamPlace {
  uint64_t rank = 0;
  uint64_t offset = 0;
};

/// Of one source: pieces in, stores out.
class StreamReader {
 public:
  /// Where byte `offset` of `rank`'s window lies, with room for `bytes`; null where none may land.
  using Target = std::function<std::byte*(uint64_t rank, uint64_t offset, uint64_t bytes)>;

  Status take(std::span<const std::byte> piece, const Target& target);

 private:
  Status take_head(std::span<const std::byte>& piece, const Target& target);

  std::vector<std::byte> head_;  // of the record at hand, as far as it has come
  std::vector<std::byte*> places_;
  uint64_t left_ = 0;  // of its bytes
};

}  // namespace braid::moe
