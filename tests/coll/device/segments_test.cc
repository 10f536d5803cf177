// How an all-reduce by copy engines is cut.
#include "coll/device/segments.h"

#include <gtest/gtest.h>

#include <set>

namespace braid::coll::all_reduce_cut {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kScratch = 512 * kMiB, kHost = 17 * kMiB;
constexpr uint64_t kNone = UINT64_MAX;  // no segment is too long for the host link's share

constexpr uint64_t kAllRanks[] = {1, 2, 3, 4, 7, 8};

// What a segment, and two in a row, have in the scratch: nothing of it twice.
TEST(Segments, CoverTheMessageAndShareNoScratch) {
  for (const uint64_t ranks : kAllRanks)
    for (const bool is_registered : {false, true})
      for (const uint64_t bytes : {uint64_t{0}, uint64_t{2}, 200 * kMiB, 256 * kMiB, 256 * kMiB + 2,
                                   300 * kMiB + 14, 512 * kMiB, 1024 * kMiB, 8192 * kMiB + 6}) {
        SCOPED_TRACE(testing::Message() << bytes << " bytes, " << ranks << " ranks");
        const Segments all = segments_of(bytes, kScratch, ranks, is_registered, {kHost, kNone});
        ASSERT_GE(all.count, 1U);
        EXPECT_LE(all.beside_at + kHost, kScratch);
        const uint64_t operands_end = (all.is_one() ? 1 : 2) * all.buffer_bytes;
        EXPECT_LE(operands_end, all.beside_at);
        if (!is_registered) {
          EXPECT_LE(operands_end, all.results_at());
          EXPECT_LE(all.results_at() + all.buffer_bytes, all.beside_at);
        }
        uint64_t covered = 0;
        for (uint64_t k = 0; k < all.count; ++k) {
          ASSERT_EQ(all.begin_of(k), covered);
          covered += all.bytes_of(k);
          const uint64_t pieces = k + 1 == all.count ? kMostPieces : 1;
          const Slices slices = slices_of(all.bytes_of(k), ranks, pieces);
          EXPECT_LE(slices.slice_bytes * (ranks - 1), all.buffer_bytes);
          EXPECT_LE(all.operands_at(k) + all.buffer_bytes, operands_end);
          if (k > 0) {
            EXPECT_NE(all.operands_at(k), all.operands_at(k - 1));
          }
        }
        EXPECT_EQ(covered, bytes);
      }
}

// Every copy costs some microseconds: no more segments than the scratch asks for.
TEST(Segments, AreAsFewAsTheScratchAllows) {
  EXPECT_EQ(segments_of(896 * kMiB, kScratch, 2, true, {64 * kMiB, kNone}).count, 1U);
  EXPECT_EQ(segments_of(897 * kMiB, kScratch, 2, true, {64 * kMiB, kNone}).count, 3U);
  EXPECT_EQ(segments_of(448 * kMiB, kScratch, 2, false, {64 * kMiB, kNone}).count, 1U);
  EXPECT_EQ(segments_of(512 * kMiB, kScratch, 2, false, {64 * kMiB, kNone}).count, 2U);
  EXPECT_EQ(segments_of(640 * kMiB, kScratch, 4, true, {32 * kMiB, kNone}).count, 1U);
  EXPECT_EQ(segments_of(1024 * kMiB, kScratch, 4, true, {32 * kMiB, kNone}).count, 4U);
  EXPECT_EQ(segments_of(1024 * kMiB, kScratch, 4, false, {32 * kMiB, kNone}).count, 5U);
}

// With NVLink held to a rate 18 % go over the host link: of a longer segment there would be no room
// for so much.
TEST(Segments, AreNoLongerThanTheHostLinksShareAllows) {
  for (const uint64_t ranks : kAllRanks)
    for (const bool is_registered : {false, true}) {
      const BesideRoom room{64 * kMiB, 355 * kMiB};
      EXPECT_EQ(segments_of(256 * kMiB, kScratch, ranks, true, room).count, 1U);
      const Segments all = segments_of(896 * kMiB, kScratch, ranks, is_registered, room);
      EXPECT_GE(all.count, 3U);
      EXPECT_LE(all.segment_bytes, room.most_segment_bytes);
    }
}

TEST(Segments, EveryOtherRankHasAPlaceOfItsOwn) {
  for (const uint64_t ranks : kAllRanks) {
    const auto n = static_cast<int>(ranks);
    for (int rank = 0; rank < n; ++rank) {
      std::set<uint64_t> places;
      for (int other = 0; other < n; ++other)
        if (other != rank) places.insert(place_of(rank, other, n));
      EXPECT_EQ(places.size(), ranks - 1);
      EXPECT_TRUE(places.empty() || *places.rbegin() == ranks - 2);
    }
  }
}

// With segments as long as can be, a message of little more than two would end with a short one:
// the sum of the long one before would have nothing to hide behind.
TEST(Segments, AreAboutEqual) {
  for (uint64_t bytes = 257 * kMiB; bytes < 1500 * kMiB; bytes += 31 * kMiB + 2) {
    const Segments all = segments_of(bytes, kScratch, 4, false, {0, kNone});
    EXPECT_GE(all.bytes_of(all.count - 1) + all.count * 4 * kLineBytes, all.segment_bytes);
  }
}

TEST(Slices, EveryByteIsInOnePiece) {
  for (const uint64_t ranks : {2, 3, 8})
    for (const uint64_t most_pieces : {uint64_t{1}, kLeastPieces, kMostPieces})
      for (const uint64_t bytes :
           {uint64_t{0}, uint64_t{2}, 700 * ranks, 20 * kMiB + 2, 256 * kMiB}) {
        const Slices slices = slices_of(bytes, ranks, most_pieces);
        ASSERT_LE(slices.num_pieces(), most_pieces);
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
  EXPECT_EQ(slices_of(8 * kMiB, 2, kMostPieces).num_pieces(), 1U);
  EXPECT_EQ(slices_of(64 * kMiB, 4, kMostPieces).num_pieces(), 2U);
  EXPECT_EQ(slices_of(256 * kMiB, 2, kMostPieces).num_pieces(), 3U);
  EXPECT_EQ(slices_of(896 * kMiB, 2, kLeastPieces).num_pieces(), 2U);
  EXPECT_EQ(slices_of(896 * kMiB, 2, 1).num_pieces(), 1U);
}

}  // namespace
}  // namespace braid::coll::all_reduce_cut
