// The loops of the reduce kernels. When all arrays lie alike modulo 16 bytes, the middle goes by
// 16-byte vectors: a thread has kSources * kVectors loads in flight before the first sum, which is
// what lets 16 blocks draw what the memory gives. Head, tail and arrays that do not lie alike go
// element by element.
#pragma once

#include "coll/reduce/reduce_args.h"
#include "coll/reduce/words.cuh"

namespace braid::coll::device {

inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorWords = kVectorBytes / 4;

struct Vector {
  uint32_t words[kVectorWords];
};

// Volatile: the compiler keeps the loads of a batch together and ahead of its sums.
__device__ __forceinline__ Vector load_vector(const void* from) {
  Vector v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(from));
  return v;
}

__device__ __forceinline__ void store_vector(void* to, const Vector& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.words[0]),
               "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
}

__device__ __forceinline__ const char* at(const void* base, uint64_t offset_bytes) {
  return static_cast<const char*>(base) + offset_bytes;
}
__device__ __forceinline__ char* at(void* base, uint64_t offset_bytes) {
  return static_cast<char*>(base) + offset_bytes;
}

/// An element at any address.
template <int kBytes>
__device__ BitsFor<kBytes> load_bits(const void* from) {
  using Bits = BitsFor<kBytes>;
  using Typed =
      std::conditional_t<kBytes == 1, uint8_t, std::conditional_t<kBytes == 2, uint16_t, Bits>>;
  if (reinterpret_cast<uint64_t>(from) % kBytes == 0) return *static_cast<const Typed*>(from);
  Bits bits = 0;
  for (int k = 0; k < kBytes; ++k)
    bits |= static_cast<Bits>(static_cast<const uint8_t*>(from)[k]) << (8 * k);
  return bits;
}

template <int kBytes>
__device__ void store_bits(void* to, BitsFor<kBytes> bits) {
  using Typed = std::conditional_t<kBytes == 1, uint8_t,
                                   std::conditional_t<kBytes == 2, uint16_t, BitsFor<kBytes>>>;
  if (reinterpret_cast<uint64_t>(to) % kBytes == 0) {
    *static_cast<Typed*>(to) = static_cast<Typed>(bits);
    return;
  }
  for (int k = 0; k < kBytes; ++k)
    static_cast<uint8_t*>(to)[k] = static_cast<uint8_t>(bits >> (8 * k));
}

template <typename R>
__device__ void reduce_element(const ReduceArgs& args, uint64_t index) {
  const uint64_t offset_bytes = index * R::kBytes;
  auto bits = load_bits<R::kBytes>(at(args.srcs[0], offset_bytes));
  if (args.num_srcs > 1) {
    auto acc = R::load(bits);
#pragma unroll 1
    for (int r = 1; r < args.num_srcs; ++r)
      acc = R::apply(acc, R::load(load_bits<R::kBytes>(at(args.srcs[r], offset_bytes))));
    bits = R::store(acc, args.num_srcs);
  }
#pragma unroll 1
  for (int d = 0; d < args.num_dsts; ++d)
    store_bits<R::kBytes>(at(args.dsts[d], offset_bytes), bits);
}

/// Elements before the first whole vector, when all arrays lie alike; else all of them.
template <typename R>
__device__ uint64_t elements_before_vectors(const ReduceArgs& args) {
  const uint64_t first = reinterpret_cast<uint64_t>(args.dsts[0]);
  uint64_t differences = first % R::kBytes;
#pragma unroll 1
  for (int r = 0; r < args.num_srcs; ++r)
    differences |= (reinterpret_cast<uint64_t>(args.srcs[r]) ^ first) % kVectorBytes;
#pragma unroll 1
  for (int d = 1; d < args.num_dsts; ++d)
    differences |= (reinterpret_cast<uint64_t>(args.dsts[d]) ^ first) % kVectorBytes;
  const uint64_t head = (kVectorBytes - first % kVectorBytes) % kVectorBytes / R::kBytes;
  return differences != 0 || head > args.count_elements ? args.count_elements : head;
}

/// The threads that work on one reduction, and which of them this is.
struct Workers {
  uint64_t index;
  uint64_t count;
};

__device__ __forceinline__ Workers all_threads() {
  return {uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x};
}

/// A thread's kVectors vectors, `stride_bytes` apart, of which the first `present` are there.
template <typename R, int kSources, int kVectors>
struct Batch {
  static constexpr int kElements = kElementsIn<R, kVectorWords>;

  const ReduceArgs& args;
  uint64_t offset_bytes;
  uint64_t stride_bytes;
  int present;
  typename R::Acc acc[kVectors][kElements];
  Vector raw[kSources][kVectors];

  // No list of initial values: it would zero the registers.
  __device__ Batch(const ReduceArgs& reduce_args, uint64_t offset, uint64_t stride, uint64_t left)
      : args(reduce_args),
        offset_bytes(offset),
        stride_bytes(stride),
        present(left < kVectors ? static_cast<int>(left) : kVectors) {}

  __device__ __forceinline__ void load(int first_source) {
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if (first_source + k >= args.num_srcs) continue;
      const void* src = args.srcs[first_source + k];
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        if (u < present) raw[k][u] = load_vector(at(src, offset_bytes + u * stride_bytes));
    }
  }

  template <bool kFirst>
  __device__ __forceinline__ void sum(int first_source) {
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if (first_source + k >= args.num_srcs) continue;
#pragma unroll
      for (int u = 0; u < kVectors; ++u) {
        if (kFirst && k == 0) {
          unpack<R, kVectorWords>(raw[k][u].words, acc[u]);
        } else {
          combine<R, kVectorWords>(raw[k][u].words, acc[u]);
        }
      }
    }
  }

  /// All sources, in their order.
  __device__ __forceinline__ void sum_all() {
    load(0);
    sum<true>(0);
#pragma unroll 1
    for (int r = kSources; r < args.num_srcs; r += kSources) {
      load(r);
      sum<false>(r);
    }
  }

  __device__ __forceinline__ void store() {
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (u >= present) continue;
      Vector out = raw[0][u];  // one source: its very bits
      if (args.num_srcs > 1) pack<R, kVectorWords>(acc[u], args.num_srcs, out.words);
#pragma unroll 1
      for (int d = 0; d < args.num_dsts; ++d)
        store_vector(at(args.dsts[d], offset_bytes + u * stride_bytes), out);
    }
  }
};

template <typename R, int kSources, int kVectors>
__device__ __forceinline__ void reduce_vectors(const ReduceArgs& args, const Workers& workers,
                                               uint64_t head, uint64_t num_vectors) {
  const uint64_t stride = workers.count;
  uint64_t v = workers.index;
#pragma unroll 1
  for (; v < num_vectors; v += stride * kVectors) {
    const uint64_t left = (num_vectors - v + stride - 1) / stride;
    Batch<R, kSources, kVectors> batch(args, head * R::kBytes + v * kVectorBytes,
                                       stride * kVectorBytes, left);
    batch.sum_all();
    batch.store();
  }
}

/// What lies before and behind the vectors, which begin after `head` elements.
template <typename R>
__device__ __forceinline__ void reduce_ends(const ReduceArgs& args, const Workers& workers,
                                            uint64_t head, uint64_t in_vectors) {
#pragma unroll 1
  for (uint64_t i = workers.index; i < args.count_elements - in_vectors; i += workers.count)
    reduce_element<R>(args, i < head ? i : i + in_vectors);
}

/// kVectors per source with two sources; half as many with more, because registers hold four then.
template <typename R, int kVectors>
__device__ __forceinline__ void reduce_arrays(const ReduceArgs& args, const Workers& workers) {
  constexpr uint64_t kElements = kElementsIn<R, kVectorWords>;
  const uint64_t head = elements_before_vectors<R>(args);
  const uint64_t num_vectors = (args.count_elements - head) / kElements;
  if (kVectors > 1 && args.num_srcs <= 2) {
    reduce_vectors<R, 2, kVectors>(args, workers, head, num_vectors);
  } else {
    reduce_vectors<R, 4, (kVectors + 1) / 2>(args, workers, head, num_vectors);
  }
  reduce_ends<R>(args, workers, head, num_vectors * kElements);
}

}  // namespace braid::coll::device
