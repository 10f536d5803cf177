#include "coll/device/preload.h"

#include "base/clock.h"
#include "base/log.h"
#include "coll/device/call_timer.h"
#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "coll/device/relay.h"
#include "coll/device/sums.h"

namespace braid::coll::device {

Status for_each_kind(const std::function<Status(const CollectiveCall&)>& load) {
  for (const plan::Op op : {plan::Op::kAllGather, plan::Op::kAllToAll, plan::Op::kBroadcast})
    BRAID_RETURN_IF_ERROR(load({op, 0, 0, 0}));
  // An all-reduce and a reduce-scatter have one kernel.
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp redop : kAllRedOps)
      BRAID_RETURN_IF_ERROR(load({plan::Op::kAllReduce, 0, 0, 0, dtype, redop}));
  return {};
}

Status preload_kernels(comm::Device& device) {
  const int64_t begin_ns = now_ns();
  Status loaded = for_each_kind([&](const CollectiveCall& kind) -> Status {
    BRAID_RETURN_IF_ERROR(packet_kernel(device, kind).status());
    for (const int num_ranks : {2, nvlink::kMostRanks})  // few, and so many that lines are wide
      BRAID_RETURN_IF_ERROR(line_kernel(device, kind, num_ranks).status());
    BRAID_RETURN_IF_ERROR(direct_kernel(device, kind).status());
    if (kind.op == plan::Op::kBroadcast) BRAID_RETURN_IF_ERROR(relay_kernel(device).status());
    if (kind.op != plan::Op::kAllReduce) return {};
    return sum_kernel(device, {kind.dtype, kind.redop, 1}).status();
  });
  if (loaded.ok()) loaded = longest_pause_kernel(device).status();
  log::debug("coll", "gpu {}: kernels loaded in {} us", device.ordinal(),
             (now_ns() - begin_ns) / 1000);
  return loaded;
}

}  // namespace braid::coll::device
