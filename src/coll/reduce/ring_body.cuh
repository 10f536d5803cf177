// Sums through shared memory: how a few blocks keep up with links.
//
// A multiprocessor draws from memory what it has on its way there. Registers hold 64 KiB of it, and
// hold nothing while a batch is being added: 44 GB/s for each multiprocessor (H200). Here every
// thread keeps a ring of three stages in shared memory, filled by asynchronous copies: while it
// adds one stage, two are on their way, up to 144 KiB of a block.
//
//   stage      width vectors of every source, 16 bytes each, all of one thread's own
//   fetch k    copies of stage k; one group of cp.async, also when nothing is left to fetch
//   sum k      waits until at most two later groups are under way, adds stage k, stores
//
// No thread reads what another fetched, so nothing is synchronised. A stage is fetched over again
// one round after its sum, by when the sum has been stored: its loads are done.
#pragma once

#include "coll/reduce/each_op.cuh"
#include "coll/reduce/reduce_body.cuh"

namespace braid::coll::device {

__device__ __forceinline__ uint32_t dynamic_shared_bytes() {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

__device__ __forceinline__ void fetch_vector(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ __forceinline__ void close_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kStillOpen>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kStillOpen) : "memory");
}

__device__ __forceinline__ Vector load_shared(uint32_t from) {
  Vector v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "r"(from)
               : "memory");
  return v;
}

/// One thread's ring and its way through the vectors.
template <typename R>
class Ring {
 public:
  __device__ Ring(const ReduceArgs& args, uint32_t memory, int width, uint64_t head_bytes)
      : args_(args),
        width_(width),
        slot_bytes_(blockDim.x * kVectorBytes),
        stage_bytes_(static_cast<uint32_t>(width * args.num_srcs) * slot_bytes_),
        slots_(memory + threadIdx.x * kVectorBytes),
        head_bytes_(head_bytes) {}

  __device__ __forceinline__ void run(const Workers& workers, uint64_t num_vectors) {
    const uint64_t step = workers.count * static_cast<uint64_t>(width_);
    uint64_t fetched = workers.index;
    int at = 0;  // stage of the next fetch; the sum's is the one after, which is the oldest
#pragma unroll 1
    for (int k = 0; k < kRingStages - 1; ++k, fetched += step, at = after(at))
      fetch(at, fetched, workers.count, num_vectors);
#pragma unroll 1
    for (uint64_t v = workers.index; v < num_vectors; v += step, fetched += step, at = after(at)) {
      fetch(at, fetched, workers.count, num_vectors);
      wait_for_groups<kRingStages - 1>();
      sum(after(at), v, workers.count, num_vectors);
    }
    wait_for_groups<0>();
  }

 private:
  static __device__ __forceinline__ int after(int stage) {
    return stage + 1 == kRingStages ? 0 : stage + 1;
  }
  __device__ __forceinline__ uint32_t stage_at(int stage) const {
    return slots_ + static_cast<uint32_t>(stage) * stage_bytes_;
  }

  __device__ __forceinline__ void fetch(int stage, uint64_t v, uint64_t stride,
                                        uint64_t end) const {
    uint32_t slot = stage_at(stage);
#pragma unroll 1
    for (int u = 0; u < width_ && v < end; ++u, v += stride) {
      const uint64_t offset_bytes = head_bytes_ + v * kVectorBytes;
#pragma unroll 2
      for (int r = 0; r < args_.num_srcs; ++r, slot += slot_bytes_)
        fetch_vector(slot, at(args_.srcs[r], offset_bytes));
    }
    close_group();
  }

  __device__ __forceinline__ void sum(int stage, uint64_t v, uint64_t stride, uint64_t end) const {
    uint32_t slot = stage_at(stage);
#pragma unroll 1
    for (int u = 0; u < width_ && v < end; ++u, v += stride) {
      Vector out = load_shared(slot);
      slot += slot_bytes_;
      if (args_.num_srcs > 1) {  // one source: its very bits
        typename R::Acc acc[kElementsIn<R, kVectorWords>];
        unpack<R, kVectorWords>(out.words, acc);
#pragma unroll 2
        for (int r = 1; r < args_.num_srcs; ++r, slot += slot_bytes_)
          combine<R, kVectorWords>(load_shared(slot).words, acc);
        pack<R, kVectorWords>(acc, args_.num_srcs, out.words);
      }
#pragma unroll 1
      for (int d = 0; d < args_.num_dsts; ++d)
        store_vector(at(args_.dsts[d], head_bytes_ + v * kVectorBytes), out);
    }
  }

  const ReduceArgs& args_;
  const int width_;
  const uint32_t slot_bytes_, stage_bytes_, slots_;
  const uint64_t head_bytes_;
};

/// As reduce_arrays(), through the block's dynamic shared memory when that holds a ring.
template <typename R, int kVectors>
__device__ __forceinline__ void reduce_through_ring(const ReduceArgs& args) {
  extern __shared__ __align__(kVectorBytes) unsigned char ring_memory[];
  const uint32_t narrowest = kRingStages * args.num_srcs * blockDim.x * kVectorBytes;
  const auto width = static_cast<int>(dynamic_shared_bytes() / narrowest);
  const uint64_t head = elements_before_vectors<R>(args);
  if (width == 0 || head == args.count_elements)
    return reduce_arrays<R, kVectors>(args, all_threads());
  constexpr uint64_t kElements = kElementsIn<R, kVectorWords>;
  const uint64_t num_vectors = (args.count_elements - head) / kElements;
  Ring<R> ring(args, static_cast<uint32_t>(__cvta_generic_to_shared(ring_memory)), width,
               head * R::kBytes);
  ring.run(all_threads(), num_vectors);
  reduce_ends<R>(args, all_threads(), head, num_vectors * kElements);
}

}  // namespace braid::coll::device

/// One entry: braid_reduce_<dtype>_<op>, as reduce_names.cc lists them.
#define BRAID_REDUCE_KERNEL(dtype, op, Format, kOp, kVectors)                             \
  extern "C" __global__ void __launch_bounds__(braid::coll::kReduceThreads)               \
      braid_reduce_##dtype##_##op(const __grid_constant__ braid::coll::ReduceArgs args) { \
    using namespace braid::coll::device;                                                  \
    reduce_through_ring<Reduction<Format, Op::kOp>, kVectors>(args);                      \
  }
