#include "plan/wire.h"

#include <algorithm>
#include <limits>

namespace braid::plan {

double egress_bytes(const Request& request, bool multicast) noexcept {
  if (request.num_ranks <= 1) return 0;
  const auto n = static_cast<double>(request.num_ranks);
  const auto bytes = static_cast<double>(request.bytes);
  const double own_block = bytes / n;
  const double to_others = own_block * (n - 1);
  switch (request.op) {
    case Op::kAllGather: return multicast ? own_block : to_others;
    // Every peer gets different bytes: multicast cannot help.
    case Op::kReduceScatter:
    case Op::kAllToAll: return to_others;
    // Reduce-scatter, then all-gather of the result.
    case Op::kAllReduce: return to_others + (multicast ? own_block : to_others);
    // Multicast: the root writes once. Unicast: the root deals out n - 1 parts, which the others
    // forward.
    case Op::kBroadcast: return bytes;
  }
  return 0;
}

double ingress_bytes(const Request& request) noexcept {
  if (request.num_ranks <= 1) return 0;
  const auto n = static_cast<double>(request.num_ranks);
  const auto bytes = static_cast<double>(request.bytes);
  const double from_others = bytes / n * (n - 1);
  switch (request.op) {
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll: return from_others;
    case Op::kAllReduce: return 2 * from_others;
    case Op::kBroadcast: return bytes;
  }
  return 0;
}

double algbw_gbps(const Request& request, const fabric::Link& link) noexcept {
  if (!(link.rate_gbps > 0)) return 0;
  // Per byte of request, so that a request of 0 bytes has the algbw of its operation and not 0 / 0.
  Request unit = request;
  unit.bytes = 1;
  const double busiest = std::max(egress_bytes(unit, link.can_multicast), ingress_bytes(unit));
  return busiest > 0 ? link.rate_gbps / busiest : std::numeric_limits<double>::infinity();
}

}  // namespace braid::plan
