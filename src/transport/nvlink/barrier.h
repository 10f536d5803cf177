// Barrier: all GPUs of a comm meet on their streams, and find out whether they mean the same call.
//
// Every rank has a signal pad in its device memory that all peers can write: one flag and one word per
// (channel, source). A barrier is one small kernel per rank. It takes the next number of its
// channel from a counter in its own device memory (so a captured graph counts on as it is replayed;
// the host bakes nothing in), writes its signature and then, with release order, the number to
// every peer's signal pad, and waits until every peer's number has arrived on its own. What a rank's
// stream did before the barrier (copy engines included) is then visible to what any rank's stream
// does after it.
//
// Why it cannot tear: a peer that has seen our number goes on, and may write its next number and
// signature before we have read this one's; so signatures have two places by turns. The one after
// the next it cannot write: for that it must see our next number, which we write after reading.
// Why it cannot hang: team.cuh.
//
// Half a barrier (a BarrierMask whose masks differ) tells without hearing, or hears without telling: a
// rank that has sent tells those that go on with what they got. Numbers count on as for a whole
// one, and every rank of the comm takes every step, so they stay alike. A teller may be many steps
// ahead; a flag only grows. Signatures would be overtaken then: such steps leave them alone, and
// have channels of their own.
//
// Where ranks know of each call what they have to do with each peer, but not what the peers have to
// do with each other, a barrier carries a signature for every pair; and later the pairs alone that
// have something left meet, as often as they need to. So pairs count their meetings themselves.
#pragma once

#include <cstdint>

#include "transport/nvlink/team.h"

namespace braid::nvlink {

inline constexpr int kNumChannels = 8;  // barriers that may be under way at once on one comm

struct Signal {
  uint64_t number;
  uint64_t signature[2];     // of even and of odd numbers
  uint64_t short_flags[13];  // short_blocks.h, on kPairChannel alone
};
static_assert(sizeof(Signal) == 128, "peers never write to one line");

/// Whom this rank tells that it has come, and whom it waits for: one bit per rank, its own ignored.
/// Signatures are compared with those that do both.
struct BarrierMask {
  uint64_t signature;
  uint32_t tells;
  uint32_t hears;
};

/// A barrier in which every pair of ranks compares a signature of its own; this rank's is unused.
struct PairSignatures {
  uint64_t signature[kMostRanks];  // [peer]
};

struct SignalPad {
  Signal*
      signals[kMostRanks];  // [rank]: its signals [channel][source], as this device addresses them
  uint64_t* numbers;        // [channel]: of the last barrier, in this device's memory
  uint64_t* pair_numbers;   // [peer]: of the pair's last meeting on kPairChannel, there too
};

/// Where pairs meet without the others; no barrier is there.
inline constexpr int kPairChannel = kNumChannels;
inline constexpr uint64_t kSignalPadBytes = sizeof(Signal) * (kNumChannels + 1) * kMostRanks;

/// On `rank`'s signal pad: what `source` writes.
constexpr Signal* signal_of(const SignalPad& pad, int rank, int channel, int source) {
  return pad.signals[rank] + (static_cast<int64_t>(channel) * kMostRanks + source);
}

}  // namespace braid::nvlink
