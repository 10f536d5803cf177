// Rolls over nodes that this process hosts, for ids that it has made.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "bindings/nccl/core/nodes/mark.h"
#include "sys/net/api.h"

namespace braid::nccl {

/// A roll of this process at `at`, whatever its port, that lives as long as it does.
Result<Mark> add_roll(const sys::Endpoint& at, const std::string& job_token);
/// Whether add_roll() or mark_id() of this process has made it.
bool has_roll(const Mark& mark);

/// Marks an id that NCCL has just made, with a roll of this process that lives as long as it does.
/// unsupported where NCCL's ids have no room, or are not one process's alone (NCCL_COMM_ID).
Status mark_id(std::span<std::byte, kIdBytes> id, const std::string& job_token);

}  // namespace braid::nccl
