// Rounds between pairs: every rank sends every other a block whose length they two alone know, over
// NVLink by copy engines, through the receiver's scratch.
//
//   caller's stream   barrier of pairs
//   push stream       push 0       push 1            push 2            ...
//   side stream       (0 out)  meeting 0, take out 0   (1 out)  meeting 1, take out 1   ...
//
// As in rounds.h, but no rank knows how many rounds the others have. So the first barrier, where
// all ranks meet, has a signature for every pair, and the meeting of round k is one of those pairs
// that have a piece k, in one direction or the other: both ranks of a pair know that. Pieces are of
// one size on all ranks. Where a block goes in the receiver's memory the sender does not know: so
// registered memory is not written in place.
//
// Why it cannot hang: of the ranks that wait, look at one in the lowest round. Those it waits for
// are in that round too, and have told it so, or come to it without waiting for a later one. Why
// nothing is overwritten in the scratch: a pair has a slot of its own in every round, and the push
// of round k waits for the meeting of the round after the slot's last use, in which the pair takes
// part, since it has a later piece.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "coll/device/rounds.h"
#include "comm/device/device.h"

namespace braid::coll::device {

using Lengths = std::array<uint64_t, nvlink::kMostRanks>;

struct PairExchange {
  Addresses out{}, in{};             // [peer]: the block for it, and where its block goes
  Lengths out_bytes{}, in_bytes{};   // as far as they go over NVLink; of this rank itself: 0
  nvlink::PairSignatures meaning{};  // equal on both ranks of a pair that mean the same
};

/// The channel of the first barrier: of every other call's too, so that none of them misses it.
inline constexpr int kPairsFirstChannel = 0;

/// Where `source`'s first piece lands in the scratch of `rank`: a place that a pair has for itself.
sys::DevicePtr pair_slot(const comm::Device& device, int rank, int source);

/// Enqueues the exchange between `stream`'s past and its future. `started` is called once, after
/// the first barrier.
Status run_pair_rounds(comm::Device& device, sys::Stream stream, const PairExchange& exchange,
                       const std::function<Status()>& started);

}  // namespace braid::coll::device
