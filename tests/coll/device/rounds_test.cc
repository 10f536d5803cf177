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
      EXPECT_LE(before, 22 * kMiB);
    }
}

// A little was once left for the last piece, and the sum of 62 MiB before it was exposed.
TEST(NextPiece, TheLastButOneHidesBehindTheLast) {
  for (const uint64_t piece : {4 * kMiB, 37 * kMiB, 64 * kMiB})
    for (uint64_t bytes = 5 * kMiB; bytes < 288 * kMiB; bytes += 256 * 1024 + 16) {
      uint64_t left = bytes, last = 0, last_but_one = 0;
      while (left > 0) {
        last_but_one = last;
        last = next_piece_bytes(left, piece);
        left -= last;
      }
      EXPECT_GE(5 * last, 2 * last_but_one) << bytes << " in pieces of " << piece;
      EXPECT_LE(last, 22 * kMiB) << bytes;
    }
}

// Rounds cost time of their own.
TEST(NextPiece, RoundsAreFew) {
  const auto num_rounds = [](uint64_t left, uint64_t piece) {
    int rounds = 0;
    for (; left > 0; ++rounds) left -= next_piece_bytes(left, piece);
    return rounds;
  };
  EXPECT_EQ(num_rounds(256 * kMiB, 64 * kMiB), 5);
  EXPECT_EQ(num_rounds(64 * kMiB, 64 * kMiB), 2);
  EXPECT_EQ(num_rounds(20 * kMiB, 64 * kMiB), 1);
  EXPECT_EQ(num_rounds(256 * kMiB, 32 * kMiB), 9);
}

}  // namespace
}  // namespace braid::coll::device
