// Whether braid takes a communicator over several nodes over: a pure function of what its ranks say
// about themselves, which all of them were told alike at their first meeting.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fabric/node_map.h"

namespace braid::nccl {

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
/// This host's name for RankFacts. `host_id` is BRAID_HOST_ID.
Result<std::string> hashed_host(const std::string& host_id);
/// Why this process should leave all communicators over several nodes to NCCL, by NCCL's settings;
/// empty: no reason.
std::string unfit_by_environment();

/// The map of ranks on nodes; unsupported, and why it is left to NCCL.
Result<fabric::NodeMap> judge_nodes(std::span<const RankFacts> ranks, bool may_share_process);

}  // namespace braid::nccl
