// What a rank finds out about itself for RankFacts (verdict.h).
#pragma once

#include <string>

#include "base/status.h"

namespace braid::nccl {

/// This host's name, of kHostDigits. `host_id` is BRAID_HOST_ID.
Result<std::string> hashed_host(const std::string& host_id);
/// Why this process should leave all communicators over several nodes to NCCL, by NCCL's settings;
/// empty: no reason.
std::string unfit_by_environment();

}  // namespace braid::nccl
