// Whether other programs take turns with ours on this GPU. A GPU gives each program that has work
// for it some milliseconds at a time (a little over 2 on an H200), in which the others' kernels
// stand still: a kernel that looks at the clock again and again finds a step in it as long as the
// others' turns. Copies of others do not stop it, nor do kernels of its own process.
//
// Why it cannot hang: it ends by the clock that it looks at.
#include "transport/nvlink/team.cuh"

/// One thread. The longest time between two looks, of all within `for_ns`.
extern "C" __global__ void braid_longest_pause(int64_t* longest_ns, int64_t for_ns) {
  const int64_t begin_ns = braid::nvlink::device_ns();
  int64_t longest = 0;
  for (int64_t last_ns = begin_ns; last_ns - begin_ns < for_ns;) {
    const int64_t ns = braid::nvlink::device_ns();
    longest = max(longest, ns - last_ns);
    last_ns = ns;
  }
  *longest_ns = longest;
}
