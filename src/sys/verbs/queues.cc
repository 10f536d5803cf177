#include "sys/verbs/queues.h"

#include <algorithm>

namespace braid::sys::verbs {
namespace {

// Messages are for control: more of them at once would only take memory of every peer.
constexpr uint32_t kMaxMessages = 256;
// A peer may have that many immediates on their way before it is slowed down, even when it asked
// for short queues.
constexpr uint32_t kMinImmediates = 64;

QueueSizes sizes_for(uint32_t depth, uint32_t max_work_requests) {
  const auto at_most = [&](uint32_t size) { return std::min(size, max_work_requests); };
  const uint32_t messages = at_most(std::min(depth, kMaxMessages));
  return {at_most(depth), messages, messages, at_most(std::max(depth, kMinImmediates))};
}

}  // namespace

Result<QueueSizes> plan_queues(uint32_t depth, const QueueLimits& limits) {
  if (depth == 0) return invalid_argument("verbs: a queue of 0 operations was asked for");
  QueueSizes sizes = sizes_for(depth, limits.max_work_requests);
  // All four shrink alike until they fit.
  while (sizes.completions() > limits.max_completions && sizes.immediates > 1) {
    for (uint32_t* size : {&sizes.transfers, &sizes.sends, &sizes.receives, &sizes.immediates})
      *size = std::max(1u, *size / 2);
  }
  if (limits.max_work_requests == 0 || sizes.completions() > limits.max_completions)
    return unavailable("verbs: the device allows {} work requests and {} completions",
                       limits.max_work_requests, limits.max_completions);
  return sizes;
}

}  // namespace braid::sys::verbs
