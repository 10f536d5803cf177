// What ranks and the roll over nodes say to each other, in blobs of the control protocol
// (group/wire.h) on a connection whose two ends have proved that they have the id and the job's
// token.
//
//   rank -> roll   sign                      before NCCL's init
//   roll -> rank   sign                      it is in the roll
//   rank -> roll   come {rank, ranks, patience, words}   to the meeting that the topic names
//   roll -> rank   met {why not, or all ranks' words}    one answer for all of them
//
// Pure functions of bytes, so that a fuzzer can call them. A length is compared with its limit
// before one byte is allocated for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace braid::nccl {

inline constexpr uint32_t kMostNodeRanks = 256;
inline constexpr uint32_t kMostWords = 2048;  // of a rank, in bytes

struct Coming {
  uint32_t rank = 0, num_ranks = 0;
  int64_t patience_ns = 0;  // of more than a week a week is sent
  std::string words;
};

/// Of a meeting that all ranks came to, their words in rank order, behind which the group's has one
/// more; else why it came to nothing.
struct Met {
  std::string why_not;  // empty: all came
  std::vector<std::string> words;
  bool all_came() const { return why_not.empty(); }
};

std::string encode(const Coming& coming);
std::string encode(const Met& met);
/// invalid_argument when it is short, long, or holds a value that no braid would send.
Result<Coming> decode_coming(std::span<const std::byte> bytes);
Result<Met> decode_met(std::span<const std::byte> bytes);

}  // namespace braid::nccl
