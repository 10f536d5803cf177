#include <algorithm>

#include "base/rounding.h"
#include "coll/lines/lines.h"
#include "coll/lines/row.h"

namespace braid::coll {

namespace {

// A second shot's trip, with the wait for all sums before it (us of a call in a graph, one shot and
// two; 4 H200: 256 KiB 7.6 and 8.4, 512 KiB 9.9 and 8.9; 8 H200: 128 KiB 9.9 and 10.3, 256 KiB 13.8
// and 10.9).
constexpr uint64_t kShotBytes = uint64_t{700} << 10;

/// One shot sends (n-1) B, two shots 2 (n-1)/n B and a trip; they cross where the difference is
/// kShotBytes. Two ranks send as much either way.
uint64_t most_one_shot_line_bytes(uint64_t ranks) {
  if (ranks <= 2) return ~uint64_t{0};
  return kShotBytes * ranks / ((ranks - 1) * (ranks - 2));
}

/// A root that sends everything to all sends (n-1) B; in slices, B and a trip.
uint64_t most_sent_to_all_bytes(uint64_t ranks) {
  return ranks <= 2 ? ~uint64_t{0} : kTripBytes / (ranks - 2);
}

PacketPath line_path_of(plan::Op op, uint64_t bytes, uint64_t ranks) {
  switch (op) {
    case plan::Op::kReduceScatter: return PacketPath::kReduceScatter;
    case plan::Op::kAllReduce:
      return bytes <= most_one_shot_line_bytes(ranks) ? PacketPath::kOneShot : PacketPath::kTwoShot;
    case plan::Op::kBroadcast:
      return bytes <= most_sent_to_all_bytes(ranks) ? PacketPath::kCopy : PacketPath::kTwoShot;
    case plan::Op::kAllGather:
    case plan::Op::kAllToAll: break;
  }
  return PacketPath::kCopy;
}

/// Rows from one rank to another, in one phase.
uint64_t slot_rows(plan::Op op, PacketPath path, uint64_t bytes, uint64_t ranks) {
  const uint64_t owners = op == plan::Op::kBroadcast ? ranks - 1 : ranks;
  const uint64_t whole = device::num_rows(bytes);
  return path == PacketPath::kTwoShot ? divided_up(whole, owners) : whole;
}

uint64_t line_half_bytes(plan::Op op, uint64_t bytes, uint64_t ranks) {
  const PacketPath path = line_path_of(op, bytes, ranks);
  const uint64_t slot = slot_rows(op, path, bytes, ranks);
  const bool is_two_shot = path == PacketPath::kTwoShot;
  uint64_t rows = ranks * slot * (is_two_shot ? 2 : 1);
  if (op == plan::Op::kBroadcast) rows = slot * (is_two_shot ? 1 + ranks : 1) + ranks;  // greetings
  return rows * kRowBytes;
}

}  // namespace

uint32_t most_line_blocks(int num_sms) noexcept {
  constexpr uint32_t kMany = 128, kSome = 64;
  return num_sms > static_cast<int>(kMany) ? kMany : kSome;
}

PacketShape lines_shape(plan::Op op, uint64_t bytes, int num_ranks, uint32_t most_blocks) noexcept {
  constexpr uint32_t kWarps = kLineThreads / 32;
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const PacketPath path = line_path_of(op, bytes, ranks);
  const uint64_t blocks = divided_up(slot_rows(op, path, bytes, ranks), kWarps);
  return {path, static_cast<uint32_t>(std::min<uint64_t>(blocks, most_blocks)), kLineThreads};
}

uint64_t line_call_bytes(plan::Op op, uint64_t bytes, int num_ranks) noexcept {
  return 2 * line_half_bytes(op, bytes, static_cast<uint64_t>(num_ranks));
}

// As with packets, the limit is on what arrives at a rank, as twice the bytes of an all-gather
// among two. Among more, direct kernels are faster from 8 MiB on (an all-gather's from 32; 4 H200,
// docs/decisions/0005). Among eight, and so taken for more, they are beyond 4 MiB for an all-reduce
// and beyond 4 MiB a rank for an all-gather (us of a call in a graph, 8 H200, lines and direct
// kernels: all_reduce of 4 MiB 36.6 and 35.5, of 8 MiB 65.6 and 57.4; all_gather of 4 MiB a rank
// 105.6 and 114.9, of 8 MiB 204 and 201).
uint64_t line_most_bytes(plan::Op op, uint64_t limit_bytes, int num_ranks) noexcept {
  if (num_ranks == 2) return plan::is_one_buffer(op) ? limit_bytes / 2 : limit_bytes;
  const bool are_many = num_ranks >= 8;
  if (op == plan::Op::kAllGather) return are_many ? limit_bytes : limit_bytes / 2;
  return op == plan::Op::kAllReduce && are_many ? limit_bytes / 8 : limit_bytes / 4;
}

uint64_t line_area_bytes(uint64_t limit_bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const auto most = [&](plan::Op op) { return line_most_bytes(op, limit_bytes, num_ranks); };
  const auto for_buffer = [&](plan::Op op, uint64_t change) {
    return std::max(line_call_bytes(op, most(op), num_ranks),
                    line_call_bytes(op, std::min(most(op), change), num_ranks));
  };
  const auto for_blocks = [&](plan::Op op) {
    return line_call_bytes(op, divided_up(most(op), ranks), num_ranks);
  };
  return std::max({for_buffer(plan::Op::kAllReduce, most_one_shot_line_bytes(ranks)),
                   for_buffer(plan::Op::kBroadcast, most_sent_to_all_bytes(ranks)),
                   for_blocks(plan::Op::kAllGather), for_blocks(plan::Op::kAllToAll),
                   for_blocks(plan::Op::kReduceScatter)});
}

}  // namespace braid::coll
