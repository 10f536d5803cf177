// How an all-reduce by copy engines is cut: a message into segments that the scratch has room for,
// a segment into a slice for each owner, a slice into a few pieces. All by values that are equal on
// all ranks.
//
//   scratch, one segment   | operands                    | results |                 host's |
//   several                | operands, even | odd segments | results |               host's |
//
// "Operands" is what the others send for this rank's slice, a place for each of them; "results" is
// what they send of theirs, where it may not go to its place at once. "Host's" are operands that
// come over a link beside. They have a place of their own: this rank's ring may be some segments
// behind NVLink, of which the others, who push, know nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "comm/device/device.h"

namespace braid::coll::all_reduce_cut {

/// Slices and pieces begin at multiples of it.
inline constexpr uint64_t kLineBytes = 256;
/// A copy below it pays more for its start than it hides.
inline constexpr uint64_t kSmallPiece = 4 << 20;
/// Of a call whose results are copied out: a smaller one costs as much as it hides.
inline constexpr uint64_t kLargePiece = 40 << 20;
/// Where the last sum alone is to be hidden: a copy costs 6 to 9 us beside its bytes. 256 MiB on 2
/// H200: 720 us by 24 blocks, 729 by three pieces and 16, 786 by two and 16.
inline constexpr uint64_t kLeastPieces = 2;
/// Where the copying out of results is, too, or sums are slower than copies.
inline constexpr uint64_t kMostPieces = 3;

/// How a message is cut into segments.
struct Segments {
  uint64_t bytes;          // of the message
  uint64_t segment_bytes;  // of every segment but for the last, which may be shorter
  uint64_t buffer_bytes;   // of a segment's operands, and of its results
  uint64_t count;          // at least 1
  uint64_t beside_at;      // host operands' place

  bool is_one() const { return count == 1; }
  uint64_t begin_of(uint64_t segment) const { return segment * segment_bytes; }
  uint64_t bytes_of(uint64_t segment) const {
    return std::min(segment_bytes, bytes - begin_of(segment));
  }
  /// Places in the scratch.
  uint64_t operands_at(uint64_t segment) const { return segment % 2 * buffer_bytes; }
  uint64_t results_at() const { return (is_one() ? 1 : 2) * buffer_bytes; }
};

/// Which of a rank's places belongs to another one: 0 to num_ranks - 2.
constexpr uint64_t place_of(int rank, int other, int num_ranks) {
  return static_cast<uint64_t>((other - rank + num_ranks) % num_ranks - 1);
}

/// Bytes of the slice that each rank owns of a message or segment.
constexpr uint64_t slice_bytes_of(uint64_t bytes, uint64_t num_ranks) {
  return std::max(round_up(divided_up(bytes, num_ranks), kLineBytes), kLineBytes);
}

/// What a segment leaves to the link beside.
struct BesideRoom {
  uint64_t most_bytes;          // of its operands there
  uint64_t most_segment_bytes;  // a longer one would have more
};

/// One segment if the scratch has room for it; else equal ones. Copies are to be few and long:
/// each costs some microseconds beside its bytes.
constexpr Segments segments_of(uint64_t bytes, uint64_t scratch_bytes, uint64_t num_ranks,
                               bool is_registered, const BesideRoom& beside) {
  const uint64_t num_others = std::max<uint64_t>(num_ranks - 1, 1);
  const uint64_t beside_at = (scratch_bytes - beside.most_bytes) / kLineBytes * kLineBytes;
  const uint64_t of_all = num_others * slice_bytes_of(bytes, num_ranks);
  if (of_all <= beside_at / (is_registered ? 1 : 2) && bytes <= beside.most_segment_bytes)
    return {bytes, bytes, of_all, 1, beside_at};
  const uint64_t num_buffers = is_registered ? 2 : 3;
  const uint64_t most_slice =
      std::min(beside_at / num_buffers / num_others, beside.most_segment_bytes / num_ranks);
  const uint64_t slice = std::max(most_slice / kLineBytes * kLineBytes, kLineBytes);
  const uint64_t least = divided_up(bytes, slice * num_ranks);
  const uint64_t segment = num_ranks * slice_bytes_of(divided_up(bytes, least), num_ranks);
  return {bytes, segment, num_others * slice, divided_up(bytes, segment), beside_at};
}

struct Span {
  uint64_t begin;  // in the segment
  uint64_t bytes;
};

/// A segment over NVLink: its first `bytes`.
struct Slices {
  uint64_t bytes;
  uint64_t slice_bytes;
  uint64_t piece_bytes;  // of a slice

  uint64_t num_pieces() const { return divided_up(slice_bytes, piece_bytes); }
  /// Bytes [at, at + piece) of rank's slice, as far as the segment reaches.
  Span span_of(int rank, uint64_t at) const {
    const uint64_t slice_begin = static_cast<uint64_t>(rank) * slice_bytes;
    const uint64_t begin = std::min(slice_begin + at, bytes);
    const uint64_t end =
        std::min({slice_begin + at + piece_bytes, slice_begin + slice_bytes, bytes});
    return {begin, end > begin ? end - begin : 0};
  }
};

/// `most_pieces` above 1: nothing of the message comes behind the segment that its sums could hide
/// behind.
constexpr Slices slices_of(uint64_t bytes, uint64_t num_ranks, uint64_t most_pieces) {
  const uint64_t slice = slice_bytes_of(bytes, num_ranks);
  const uint64_t num_pieces = most_pieces == 1 || slice < 2 * kSmallPiece
                                  ? 1
                                  : std::clamp(slice / kLargePiece, kLeastPieces, most_pieces);
  return {bytes, slice, round_up(divided_up(slice, num_pieces), kLineBytes)};
}

}  // namespace braid::coll::all_reduce_cut

namespace braid::coll::device {

/// Of the device's next call: by its scratch, and by what a link beside may have of a segment. The
/// share that holds before the call is counted is the same on all ranks, and so are its segments.
all_reduce_cut::Segments segments_of(const comm::Device& device, uint64_t bytes,
                                     bool is_registered);

}  // namespace braid::coll::device
