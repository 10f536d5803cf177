// What lies where in the workspace:
//
//   epoch | finished | told | epochs | flags | sums | data
//
//   epoch     the calls that began (count.h)
//   finished  a 32-bit counter for each batch of each shard (GemmArgs::finished)
//   told      which sums are there, below (GemmArgs::summed)
//   epochs    the epoch again and again: what copy engines take flags from
//   flags     peers write here that something has arrived
//   sums      of tiles that blocks share (GemmArgs::sums): all but kGemmArExchange
//   data      kAgGemm: all rows of A. kGemmRs: parts, the outbox. kGemmAr: parts, the outbox, C.
//             kGemmArExchange: parts
//
// Flags of one shape lie where another one's lay; since epochs only grow, what was left there is too
// small for whoever waits. So nothing else may ever lie there: a sum or a part, read as a flag, is
// larger than any epoch, and a wait would end before what it waits for has come. Flags and epochs have
// rooms of one size for all shapes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "overlap/calls.h"

namespace braid::overlap {

inline constexpr uint64_t kFinishedAt = 256, kSummedAt = 4096, kEpochsAt = 8192, kPageBytes = 4096;
/// Of one source's flags: 65,536 tiles of a shard.
inline constexpr uint64_t kFlagRoom = 1 << 20;
inline constexpr int32_t kMostBatches = (kSummedAt - kFinishedAt) / 4 / kMostRanks;
static_assert(kSummedAt + kSumFlagsBytes <= kEpochsAt);
inline constexpr uint32_t kOneSlot = 1;

inline Op op_of(Call call) {
  switch (call) {
    case Call::kAgGemm: return Op::kGather;
    case Call::kGemmRs:
    case Call::kGemmAr: return Op::kScatter;
    case Call::kGemmArExchange: break;
  }
  return Op::kExchange;
}

inline int32_t piece_rows(const Gemm& gemm, const Choice& choice) {
  return choice.piece_rows > 0 ? std::min(choice.piece_rows, gemm.shard_rows) : gemm.shard_rows;
}

inline uint64_t pages(uint64_t bytes) { return round_up(bytes, kPageBytes); }

struct WorkspaceLayout {
  uint64_t flags_of_one;  // bytes of one source's flags
  uint64_t flags_at, sums_at, data_at, outbox_at, c_at, end;
  uint64_t part_bytes;

  WorkspaceLayout(Call call, const Gemm& gemm, const Choice& choice) {
    const auto ranks = static_cast<uint64_t>(gemm.ranks);
    const uint64_t elements =
        static_cast<uint64_t>(gemm.shard_rows) * static_cast<uint64_t>(gemm.columns);
    const bool gathers = call == Call::kAgGemm;
    flags_of_one = gathers ? 8 * static_cast<uint64_t>(
                                     divided_up(gemm.shard_rows, int64_t{piece_rows(gemm, choice)}))
                           : flag_bytes(op_of(call), gemm, choice) / ranks;
    flags_at = kEpochsAt + kFlagRoom;
    sums_at = flags_at + kFlagRoom * ranks;
    const bool has_outbox = call == Call::kGemmRs || call == Call::kGemmAr;
    const bool has_sums = call != Call::kGemmArExchange && choice.splits;
    const int64_t sums = has_sums ? sums_bytes(shape_of(choice.form)) : 0;
    data_at = sums_at + pages(static_cast<uint64_t>(sums));
    part_bytes =
        gathers ? 2 * static_cast<uint64_t>(gemm.shard_rows) * static_cast<uint64_t>(gemm.depth)
                : room_bytes(op_of(call), gemm, choice, kOneSlot) / ranks;
    outbox_at = data_at + pages(part_bytes * ranks);
    c_at = outbox_at + (has_outbox ? pages(part_bytes * ranks) : 0);
    end = c_at + (call == Call::kGemmAr ? pages(2 * ranks * elements) : 0);
  }
};

}  // namespace braid::overlap
