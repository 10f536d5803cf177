// How an all-reduce by copy engines is cut: a message into segments that the scratch has room for,
// a segment into a slice for each owner, a slice into a few pieces. All by values that are equal on
// all ranks.
//
//   scratch, one segment   | operands            host's | results                            |
//   several, registered    | operands of even ones | operands of odd ones          | host's |
//   several                | operands, even | operands, odd | results, even | odd     | host's |
//
// "Operands" is what others send for this rank's slice, a slot for every source; "results" is what
// others send of theirs, laid out as the segment is, where it may not go to its place at once.
// "Host's" are operands that come over the host link. They have a place of their own: this rank's
// ring may be some segments behind NVLink, of which the others, who push, know nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"

namespace braid::coll::all_reduce_cut {

/// Slices and pieces begin at multiples of it.
inline constexpr uint64_t kLineBytes = 256;
/// A copy below it pays more for its start than it hides.
inline constexpr uint64_t kSmallPiece = 4 << 20;
/// Two of them, and the last sum hides behind the first.
inline constexpr uint64_t kLargePiece = 32 << 20;
/// A call of 256 MiB on 2 H200: 728 us, 736 with four.
inline constexpr uint64_t kMostPieces = 3;

/// How a message is cut into segments.
struct Segments {
  uint64_t bytes;          // of the message
  uint64_t segment_bytes;  // of every segment but for the last, which may be shorter
  uint64_t buffer_bytes;   // of a segment's operands, and of its results
  uint64_t count;          // at least 1
  uint64_t host_at;        // of several: host operands' place

  bool is_one() const { return count == 1; }
  uint64_t begin_of(uint64_t segment) const { return segment * segment_bytes; }
  uint64_t bytes_of(uint64_t segment) const {
    return std::min(segment_bytes, bytes - begin_of(segment));
  }
  /// Places in the scratch.
  uint64_t operands_at(uint64_t segment) const { return is_one() ? 0 : segment % 2 * buffer_bytes; }
  uint64_t results_at(uint64_t segment) const {
    return is_one() ? buffer_bytes : (2 + segment % 2) * buffer_bytes;
  }
  uint64_t host_operands_at(uint64_t bytes_of_all) const {
    return is_one() ? buffer_bytes - bytes_of_all : host_at;
  }
};

/// One segment as long as half of the scratch is enough for its operands, and the other for
/// results; else equal ones, two of which have room there. `most_host_bytes`: of a segment's
/// operands over the host link.
constexpr Segments segments_of(uint64_t bytes, uint64_t scratch_bytes, uint64_t num_ranks,
                               bool is_registered, uint64_t most_host_bytes) {
  const uint64_t unit = num_ranks * kLineBytes;
  const uint64_t half = scratch_bytes / 2 / unit * unit;
  if (bytes <= half) return {bytes, half, half, 1, 0};
  const uint64_t num_buffers = is_registered ? 2 : 4;
  const uint64_t buffer = (scratch_bytes - most_host_bytes) / num_buffers / unit * unit;
  const uint64_t least = divided_up(bytes, buffer);
  const uint64_t segment = std::min(round_up(divided_up(bytes, least), unit), buffer);
  return {bytes, segment, buffer, divided_up(bytes, segment), num_buffers * buffer};
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

/// `in_pieces`: nothing of the message comes behind the segment that its sums could hide behind.
constexpr Slices slices_of(uint64_t bytes, uint64_t num_ranks, bool in_pieces) {
  const uint64_t slice = std::max(round_up(divided_up(bytes, num_ranks), kLineBytes), kLineBytes);
  const uint64_t num_pieces = !in_pieces || slice < 2 * kSmallPiece
                                  ? 1
                                  : std::clamp<uint64_t>(slice / kLargePiece, 2, kMostPieces);
  return {bytes, slice, round_up(divided_up(slice, num_pieces), kLineBytes)};
}

}  // namespace braid::coll::all_reduce_cut
