// Copies by threads, and the flags by which GPUs tell each other that bytes have arrived.
//
// The protocol, for one sender and one receiver (more of each do the same side by side):
//
//   sender's stream                              receiver's stream
//   braid_advance   epoch e -> e + 1             braid_advance   its own epoch e -> e + 1
//   (writes into the receiver's memory)
//   braid_signal    flag := e + 1   ---------->  braid_wait      until flag >= e + 1
//                                                (reads what was written)
//
// Who writes what. Each GPU has one epoch counter in its own memory; only braid_advance writes it,
// and stream order puts that before the signal and the wait of the same call. Since it is read on
// the device, a captured graph that is launched again uses the next epoch. Each flag has one writer
// and one reader and lies in the reader's memory, so that polling stays off the links. Flags only
// grow and are never reset; a flag of 32 bits holds the low half, and "at least" is the sign of
// the difference, so it may wrap. (A flag can thus be ahead of its reader, by less than 2^31.)
//
// Why nothing tears. A flag is one aligned word. Whatever the sender's stream did before
// braid_signal, kernels and copy engines alike, has happened before that kernel began; its
// st.release.sys carries that along, and the ld.acquire.sys in braid_wait that sees the value has
// it happen before all that follows in the receiver's stream.
//
// Why nothing hangs. braid_wait looks at the device's global timer, which counts nanoseconds at any
// clock rate. When the time is up it writes a Fault into host memory, its kind last with release,
// and returns: what follows in the stream then runs on bytes that may not have arrived, and the
// host, which looks at the Fault before it calls the result good, answers timeout.
#include "transport/nvlink/copy.h"

#include "transport/nvlink/flags.cuh"
#include "transport/nvlink/words.cuh"

using namespace braid::transport::nvlink;

extern "C" __global__ void __launch_bounds__(kCopyMaxThreads)
    braid_copy16(const __grid_constant__ CopyArgs args) {
  const Team grid{uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                  uint64_t{gridDim.x} * blockDim.x};
  copy_by_team(grid, args.to, args.from, args.bytes);
}

extern "C" __global__ void braid_advance(const __grid_constant__ EpochArgs args) {
  if (blockIdx.x == 0 && threadIdx.x == 0) ++*reinterpret_cast<uint64_t*>(args.epoch);
}

extern "C" __global__ void braid_signal(const __grid_constant__ SignalArgs args) {
  if (threadIdx.x >= args.num_flags) return;
  st_release(args.flags[threadIdx.x], read_epoch(args.epoch, args.offset), args.flag_bytes);
}

// One thread per flag. When several flags are late, the first of them is reported.
extern "C" __global__ void braid_wait(const __grid_constant__ WaitArgs args) {
  __shared__ uint32_t first_late;
  if (threadIdx.x == 0) first_late = kMaxFlags;
  __syncthreads();

  const uint64_t began_ns = global_timer_ns();
  const uint64_t expected = read_epoch(args.epoch, args.offset);
  uint64_t seen = expected;
  if (threadIdx.x < args.num_flags) {
    do {
      seen = ld_acquire(args.flags[threadIdx.x], args.flag_bytes);
    } while (!is_at_least(seen, expected, args.flag_bytes) &&
             global_timer_ns() - began_ns < args.timeout_ns);
    if (!is_at_least(seen, expected, args.flag_bytes)) atomicMin(&first_late, threadIdx.x);
  }
  __syncthreads();
  if (threadIdx.x != first_late) return;

  // The first fault stays until the host has taken it.
  const uint64_t kind_address = args.fault + offsetof(Fault, kind);
  if (ld_acquire(kind_address, sizeof(Fault::kind)) != Fault::kNone) return;
  auto* fault = reinterpret_cast<Fault*>(args.fault);
  fault->rank = args.rank;
  fault->block = blockIdx.x;
  fault->peer = args.peers[threadIdx.x];
  fault->expected = expected;
  fault->seen = seen;
  // Pairs with the host's acquire of kind.
  st_release(kind_address, Fault::kTimeout, sizeof(Fault::kind));
}
