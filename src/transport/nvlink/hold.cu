// Holds a stream to a rate, for experiments (BRAID_LINK_CAP): what a slower NVLink would give.
//
// `free_ns` is when the link has carried everything so far, on the device's clock; only the kernels
// of one stream use it. A batch opens with cost 0: an idle link is free from now on, so that time
// that nobody used is not made up for. After each copy the link is busy for what the copy would
// have taken, and the stream waits for that. Why it cannot hang: the cost of a copy bounds every
// wait.
#include "transport/nvlink/team.cuh"

extern "C" __global__ void braid_hold(uint64_t* free_ns, uint64_t cost_ns) {
  const auto now_ns = [] { return static_cast<uint64_t>(braid::nvlink::device_ns()); };
  if (cost_ns == 0) {
    *free_ns = max(*free_ns, now_ns());
    return;
  }
  const uint64_t until_ns = *free_ns + cost_ns;
  while (now_ns() < until_ns) {
  }
  *free_ns = until_ns;
}
