// Copies in a combine that sums per node (node_combine.cc): where they lie, and those of a token together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/rounding.h"
#include "moe/arguments.h"
#include "moe/slot.h"

namespace braid::moe {

/// What lies where in a region: counts by node, then for each node room for a round's copies.
struct PartialLayout {
  static constexpr uint64_t kWeights = 16;  // offset in a copy; the token's number is at 0

  PartialLayout(const Combine& call, int num_nodes, uint64_t region_bytes)
      : weight_bytes(call.has_weights ? 4 * static_cast<uint64_t>(call.num_topk) : 0),
        begin(round_up(4 * static_cast<uint64_t>(num_nodes), Slot::kUnit)),
        row(round_up(kWeights + weight_bytes, Slot::kUnit)),
        copy_bytes(round_up(row + call.row_bytes(), Slot::kUnit)) {
    if (region_bytes > begin)
      rounds.tokens =
          tokens_in(region_bytes - begin, copy_bytes * static_cast<uint64_t>(num_nodes));
  }
  /// Of copy `i` among those of a node's owner.
  uint64_t copy(int node, uint32_t i) const {
    return begin +
           (static_cast<uint64_t>(node) * static_cast<uint64_t>(rounds.tokens) + i) * copy_bytes;
  }

  const uint64_t weight_bytes;
  const uint64_t begin, row, copy_bytes;
  Rounds rounds;
};

inline uint32_t token_of(const std::byte* copy) {
  uint32_t token = 0;
  std::memcpy(&token, copy, sizeof token);
  return token;
}

/// Reads what node mates sent of one owner's tokens: in the order of tokens, the copies of one token
/// together.
class TokenReader {
 public:
  TokenReader(const PartialLayout& layout, int node) : layout_(layout), node_(node) {}
  void add_source(const std::byte* region, uint32_t count) {
    sources_.push_back({region, count, 0});
  }

  /// Calls `each` with every copy of the next token, in rank order; answers the token, or -1.
  template <typename Each>
  int64_t next(Each&& each) {
    int64_t token = -1;
    for (const Source& source : sources_)
      if (source.next < source.count && (token < 0 || token_of(copy(source)) < token))
        token = token_of(copy(source));
    for (Source& source : sources_) {
      if (source.next == source.count || token_of(copy(source)) != token) continue;
      each(copy(source));
      ++source.next;
    }
    return token;
  }

 private:
  struct Source {
    const std::byte* region;
    uint32_t count, next;
  };
  const std::byte* copy(const Source& source) const {
    return source.region + layout_.copy(node_, source.next);
  }
  const PartialLayout& layout_;
  const int node_;
  std::vector<Source> sources_;
};

}  // namespace braid::moe
