// How an exchange is cut into pieces.
#include "coll/device/rounds.h"

#include <gtest/gtest.h>

namespace braid::coll::device {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(NextPiece, PiecesCoverTheBlockAndShrinkAtItsEnd) {
  for (const uint64_t piece : {8 * kMiB, 32 * kMiB})
    for (const uint64_t bytes : {uint64_t{1}, kMiB, 8 * kMiB, 31 * kMiB + 7, 256 * kMiB + 1}) {
      uint64_t left = bytes, before = piece;
      while (left > 0) {
        const uint64_t next = next_piece_bytes(left, piece);
        ASSERT_GT(next, 0U);
        ASSERT_LE(next, left);
        ASSERT_LE(next, before) << left << " left of " << bytes;
        before = next;
        left -= next;
      }
      EXPECT_LT(before, 16 * kMiB);
    }
}

}  // namespace
}  // namespace braid::coll::device
