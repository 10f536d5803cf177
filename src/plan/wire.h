// What each operation puts on a link: bytes that leave and enter one rank, for a request of `bytes`
// (as nccl-tests counts them) over `num_ranks`, by braid's direct schedules (no rings). The busiest
// rank counts: for broadcast that is the root on the way out. From these follows the algbw of a
// link: request bytes per ns when it carries all.
#pragma once

#include "plan/plan.h"

namespace braid::plan {

/// Bytes that the busiest rank sends when the link carries the whole request. `multicast`: one
/// write reaches all.
double egress_bytes(const Request& request, bool multicast) noexcept;
/// Bytes that the busiest rank receives; the same for both kinds of link.
double ingress_bytes(const Request& request) noexcept;
/// Request bytes per ns of `link`, when it alone carries the request and nothing but its rate
/// limits it. 0 when the link has no rate; +infinity when the operation moves nothing (one rank).
double algbw_gbps(const Request& request, const fabric::Link& link) noexcept;

}  // namespace braid::plan
