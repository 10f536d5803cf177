// Where rank 0's store is, as names say.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/net/api.h"

namespace braid::group {

/// The addresses of a host, on port 0. Timeout when the resolver has not answered by the deadline;
/// what `interrupt` says while it waits.
Result<std::vector<sys::Endpoint>> look_up(const std::string& host, Deadline deadline,
                                           const Interrupt& interrupt);

/// Whether nobody on another host can reach any of them.
bool all_loopback(const std::vector<sys::Endpoint>& hosts);

}  // namespace braid::group
