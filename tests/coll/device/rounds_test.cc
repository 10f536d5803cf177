// How an exchange is cut into pieces.
#include "coll/device/rounds.h"

#include <gtest/gtest.h>

namespace braid::coll::device {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(NextPiece, PiecesCoverTheBlockAndShrinkAtItsEnd) {
  for (const uint64_t piece : {kMiB, 8 * kMiB, 32 * kMiB, 64 * kMiB})
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

// A quarter of the block that is rounded down leaves a little for a fifth piece: a last but one of
// 62 MiB once left its whole sum exposed.
TEST(NextPiece, NothingLargeIsLeftForTheEnd) {
  for (uint64_t host = 0; host < 32 * kMiB; host += 256 * 1024 + 16) {
    const uint64_t bytes = 256 * kMiB - host, piece = bytes / 4 / 4096 * 4096;
    uint64_t left = bytes, last = 0, last_but_one = 0;
    while (left > 0) {
      last_but_one = last;
      last = next_piece_bytes(left, piece);
      left -= last;
    }
    EXPECT_LE(last_but_one, 16 * kMiB) << bytes;
    EXPECT_LE(last, 16 * kMiB) << bytes;
  }
}

}  // namespace
}  // namespace braid::coll::device
