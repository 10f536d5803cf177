// What the caller of an all_to_all makes of the blocks that arrive, where it reduces them bit by bit.
#pragma once

#include <cstdint>

namespace braid::coll {

/// Nothing here depends on it: ranks compare it, so that one that means another operator is told.
enum class BitOp : uint8_t { kNone = 0, kBand = 1, kBor = 2, kBxor = 3 };

constexpr bool is_valid(BitOp op) { return op <= BitOp::kBxor; }
/// "band"; "" for none.
constexpr const char* bit_op_name(BitOp op) {
  switch (op) {
    case BitOp::kBand: return "band";
    case BitOp::kBor: return "bor";
    case BitOp::kBxor: return "bxor";
    default: return "";
  }
}

}  // namespace braid::coll
