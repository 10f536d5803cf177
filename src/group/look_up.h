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

/// Whether nobody on another host can be of the group, whose rank 0 is at `hosts` as this host knows
/// them: the launcher says so, or all are loopback. Yet a host's own name may mean loopback there
/// (Debian's 127.0.1.1) and an address everywhere else: so where the ranks were given a secret to
/// share, a name other than localhost says nothing.
bool is_of_one_host(const Identity& identity, const std::vector<sys::Endpoint>& hosts);

/// Where rank 0 listens without BRAID_BIND: at `hosts`, but at every address of this host where they
/// are loopback and ranks may be elsewhere.
std::vector<sys::Endpoint> where_to_listen(const Identity& identity,
                                           std::vector<sys::Endpoint> hosts);

}  // namespace braid::group
