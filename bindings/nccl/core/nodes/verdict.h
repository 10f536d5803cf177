// Whether braid takes a communicator over several nodes over: a pure function of what its ranks say
// about themselves, which all of them were told alike at their first meeting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fabric/node_map.h"

namespace braid::nccl {

inline constexpr size_t kHostDigits = 32;

/// What a rank says about itself.
struct RankFacts {
  std::string host;       // 32 hex digits, the same on all ranks of a host and on no others
  uint64_t process = 0;   // no two processes have the same
  uint64_t settings = 0;  // a fingerprint of everything that ranks must have alike
  int nccl_version = 0;
  std::string unfit;  // why this rank cannot; empty: it can
};

std::string encode(const RankFacts& facts);
/// invalid_argument for what no braid would say.
Result<RankFacts> decode_facts(std::string_view words);
/// The map of ranks on nodes; unsupported, and why it is left to NCCL.
Result<fabric::NodeMap> judge_nodes(std::span<const RankFacts> ranks, bool may_share_process);

}  // namespace braid::nccl
