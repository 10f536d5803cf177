// How an all-reduce by copy engines is cut.
#include "coll/all_reduce/segments.h"

#include <gtest/gtest.h>

namespace braid::coll::all_reduce_cut {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kScratch = 512 * kMiB, kHost = 17 * kMiB;

// What two segments in a row have in the scratch, and nothing of it twice.
TEST(Segments, CoverTheMessageAndShareNoScratch) {
  for (const uint64_t ranks : {2, 3, 4, 7, 8})
    for (const bool is_registered : {false, true})
      for (const uint64_t bytes : {uint64_t{0}, uint64_t{2}, 200 * kMiB, 256 * kMiB, 256 * kMiB + 2,
                                   300 * kMiB + 14, 512 * kMiB, 1024 * kMiB, 8192 * kMiB + 6}) {
        SCOPED_TRACE(testing::Message() << bytes << " bytes, " << ranks << " ranks");
        const Segments all = segments_of(bytes, kScratch, ranks, is_registered, kHost);
        ASSERT_GE(all.count, 1U);
        uint64_t covered = 0;
        for (uint64_t k = 0; k < all.count; ++k) {
          ASSERT_EQ(all.begin_of(k), covered);
          covered += all.bytes_of(k);
          const Slices slices = slices_of(all.bytes_of(k), ranks, k + 1 == all.count);
          EXPECT_LE(slices.slice_bytes * ranks, all.buffer_bytes);
          const uint64_t operands_end = all.operands_at(k) + all.buffer_bytes;
          if (!is_registered) {
            EXPECT_LE(all.results_at(k) + all.buffer_bytes, kScratch);
            EXPECT_LE(operands_end, all.results_at(0));
          }
          EXPECT_LE(operands_end, kScratch);
          if (k > 0) {
            EXPECT_NE(all.operands_at(k), all.operands_at(k - 1));
          }
        }
        EXPECT_EQ(covered, bytes);
        if (all.is_one()) continue;
        const uint64_t host_at = all.host_operands_at(kHost);
        EXPECT_LE(host_at + kHost, kScratch);
        for (uint64_t k = 0; k < 2; ++k) {
          EXPECT_LE(all.operands_at(k) + all.buffer_bytes, host_at);
          if (!is_registered) {
            EXPECT_LE(all.results_at(k) + all.buffer_bytes, host_at);
          }
        }
      }
}

// With segments as long as can be, a message of little more than two would end with a short one:
// the sum of the long one before would have nothing to hide behind.
TEST(Segments, AreAboutEqual) {
  for (uint64_t bytes = 257 * kMiB; bytes < 1500 * kMiB; bytes += 31 * kMiB + 2) {
    const Segments all = segments_of(bytes, kScratch, 4, false, 0);
    EXPECT_GE(all.bytes_of(all.count - 1) + all.count * 4 * kLineBytes, all.segment_bytes);
  }
}

TEST(Slices, EveryByteIsInOnePiece) {
  for (const uint64_t ranks : {2, 3, 8})
    for (const bool in_pieces : {false, true})
      for (const uint64_t bytes :
           {uint64_t{0}, uint64_t{2}, 700 * ranks, 20 * kMiB + 2, 256 * kMiB}) {
        const Slices slices = slices_of(bytes, ranks, in_pieces);
        if (!in_pieces) {
          EXPECT_EQ(slices.num_pieces(), 1U);
        }
        ASSERT_LE(slices.num_pieces(), kMostPieces);
        uint64_t covered = 0;
        for (int rank = 0; rank < static_cast<int>(ranks); ++rank)
          for (uint64_t p = 0; p < slices.num_pieces(); ++p) {
            const Span span = slices.span_of(rank, p * slices.piece_bytes);
            if (span.bytes == 0) continue;
            ASSERT_EQ(span.begin, covered);
            covered += span.bytes;
          }
        EXPECT_EQ(covered, bytes);
      }
}

TEST(Slices, OfTheLastSegmentAreCutWhereACopyIsLongEnough) {
  EXPECT_EQ(slices_of(8 * kMiB, 2, true).num_pieces(), 1U);
  EXPECT_EQ(slices_of(64 * kMiB, 4, true).num_pieces(), 2U);
  EXPECT_EQ(slices_of(256 * kMiB, 2, true).num_pieces(), 3U);
}

}  // namespace
}  // namespace braid::coll::all_reduce_cut
