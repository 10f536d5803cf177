// What a communicator's options are, and what its ranks must have alike of them.
#pragma once

#include <cstdint>

#include "base/config.h"
#include "base/status.h"

namespace braid::nccl {

/// Of comms that stand in for NCCL's: calls are late for as long as users like, and only device
/// memory moves.
Result<Config> config_for_calls();

/// Ranks that differ in anything that decides what is taken over and how a call goes have different
/// ones, but for chance. `of_caller` is the caller's own part of it.
uint64_t fingerprint_of_settings(uint64_t of_caller);

}  // namespace braid::nccl
