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

using namespace braid::transport::nvlink;

namespace {

__device__ uint64_t global_timer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Releases to ld_acquire() below, on this or another device, and to std::atomic's on the host.
__device__ void st_release(uint64_t address, uint64_t value, uint32_t flag_bytes) {
  if (flag_bytes == 8)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
  else
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address),
                 "r"(static_cast<uint32_t>(value))
                 : "memory");
}

// Pairs with st_release().
__device__ uint64_t ld_acquire(uint64_t address, uint32_t flag_bytes) {
  uint64_t wide;
  uint32_t narrow;
  if (flag_bytes == 8) {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(wide) : "l"(address) : "memory");
    return wide;
  }
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(narrow) : "l"(address) : "memory");
  return narrow;
}

__device__ bool is_at_least(uint64_t seen, uint64_t expected, uint32_t flag_bytes) {
  if (flag_bytes == 8) return static_cast<int64_t>(seen - expected) >= 0;
  return static_cast<int32_t>(static_cast<uint32_t>(seen) - static_cast<uint32_t>(expected)) >= 0;
}

__device__ uint64_t read_epoch(uint64_t address, uint64_t offset) {
  return *reinterpret_cast<const uint64_t*>(address) + offset;
}

// Sixteen bytes, the unit in which threads move most.
struct alignas(16) Word {
  uint64_t low, high;
};
static_assert(sizeof(Word) == 16);

// The 64 bits that begin `shift_bits` (0..63) into low:high.
__device__ uint64_t funnel(uint64_t low, uint64_t high, uint32_t shift_bits) {
  return static_cast<uint64_t>(((static_cast<unsigned __int128>(high) << 64) | low) >> shift_bits);
}

// The sixteen bytes that begin `skew` (1..15) bytes into a.
__device__ Word spliced(Word a, Word b, uint32_t skew) {
  const bool is_far = skew >= 8;
  const uint64_t first = is_far ? a.high : a.low;
  const uint64_t second = is_far ? b.low : a.high;
  const uint64_t third = is_far ? b.high : b.low;
  const uint32_t shift_bits = (skew & 7) * 8;
  return {funnel(first, second, shift_bits), funnel(second, third, shift_bits)};
}

struct Aligned {  // source and destination are equally far from a multiple of 16
  const Word* from;
  __device__ Word load(uint64_t i) const { return from[i]; }
};

// Reads whole aligned words around the wanted bytes. Each of them holds at least one wanted byte,
// so none can be outside the source's pages.
struct Skewed {
  const Word* from;  // rounded down to 16 bytes
  uint32_t skew;
  __device__ Word load(uint64_t i) const { return spliced(from[i], from[i + 1], skew); }
};

// Four loads are on their way before the first store: one would wait for memory every time.
template <typename Source>
__device__ void copy_words(Word* to, const Source& source, uint64_t num_words) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < num_words; i += 4 * stride) {
    const Word a = source.load(i), b = source.load(i + stride);
    const Word c = source.load(i + 2 * stride), d = source.load(i + 3 * stride);
    to[i] = a;
    to[i + stride] = b;
    to[i + 2 * stride] = c;
    to[i + 3 * stride] = d;
  }
  for (; i < num_words; i += stride) to[i] = source.load(i);
}

__device__ void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += stride)
    to[i] = from[i];
}

}  // namespace

// Bytes up to the destination's first multiple of 16, whole words, and the bytes left over.
extern "C" __global__ void __launch_bounds__(kCopyMaxThreads)
    braid_copy16(const __grid_constant__ CopyArgs args) {
  const uint64_t to_boundary = (16 - reinterpret_cast<uint64_t>(args.to) % 16) % 16;
  const uint64_t head_bytes = to_boundary < args.bytes ? to_boundary : args.bytes;
  const uint64_t num_words = (args.bytes - head_bytes) / 16;
  const uint64_t done_bytes = head_bytes + 16 * num_words;
  copy_bytes(args.to, args.from, head_bytes);
  copy_bytes(args.to + done_bytes, args.from + done_bytes, args.bytes - done_bytes);

  auto* to = reinterpret_cast<Word*>(args.to + head_bytes);
  const std::byte* from = args.from + head_bytes;
  const auto skew = static_cast<uint32_t>(reinterpret_cast<uint64_t>(from) % 16);
  const auto* from_word = reinterpret_cast<const Word*>(from - skew);
  if (skew == 0)
    copy_words(to, Aligned{from_word}, num_words);
  else
    copy_words(to, Skewed{from_word, skew}, num_words);
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

  auto* fault = reinterpret_cast<Fault*>(args.fault);
  fault->rank = args.rank;
  fault->block = blockIdx.x;
  fault->peer = args.peers[threadIdx.x];
  fault->expected = expected;
  fault->seen = seen;
  // Pairs with the host's acquire of kind.
  st_release(args.fault + offsetof(Fault, kind), Fault::kTimeout, sizeof fault->kind);
}
