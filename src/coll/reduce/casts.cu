// Casts between fp32 and the smaller floats (casts.h). Four elements at a time where both arrays lie
// so that four can be had at once, which pieces of Stages do.
#include "coll/reduce/reduce_body.cuh"

namespace braid::coll::device {

constexpr int kFour = 4;

/// kBytes of 4, 8 or 16 at an address that is a multiple of it.
template <int kBytes>
struct alignas(kBytes) Quad {
  uint32_t words[kBytes / 4];
};

template <typename From, typename To>
__device__ __forceinline__ void cast_four(const void* from, void* to) {
  constexpr uint32_t kFromMask = From::kBytes == 4 ? ~0u : (1u << (8 * From::kBytes % 32)) - 1;
  constexpr int kFromPerWord = 4 / From::kBytes, kToPerWord = 4 / To::kBytes;
  const auto read = *static_cast<const Quad<kFour * From::kBytes>*>(from);
  Quad<kFour * To::kBytes> out{};
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const uint32_t bits =
        read.words[i / kFromPerWord] >> (8 * From::kBytes * (i % kFromPerWord)) & kFromMask;
    out.words[i / kToPerWord] |= To::round(From::widen(bits))
                                 << (8 * To::kBytes * (i % kToPerWord));
  }
  *static_cast<Quad<kFour * To::kBytes>*>(to) = out;
}

template <typename From, typename To>
__device__ void cast_array(const void* from, void* to, uint64_t count, const Workers& workers) {
  const bool is_aligned = reinterpret_cast<uint64_t>(from) % (kFour * From::kBytes) == 0 &&
                          reinterpret_cast<uint64_t>(to) % (kFour * To::kBytes) == 0;
  const uint64_t fours = is_aligned ? count / kFour : 0;
#pragma unroll 1
  for (uint64_t i = workers.index; i < fours; i += workers.count)
    cast_four<From, To>(at(from, i * kFour * From::kBytes), at(to, i * kFour * To::kBytes));
#pragma unroll 1
  for (uint64_t i = kFour * fours + workers.index; i < count; i += workers.count)
    store_bits<To::kBytes>(
        at(to, i * To::kBytes),
        To::round(From::widen(load_bits<From::kBytes>(at(from, i * From::kBytes)))));
}

template <typename From, typename To>
__device__ void cast_arrays(const ReduceArgs& args) {
  const Workers workers = all_threads();
#pragma unroll 1
  for (int s = 0; s < args.num_srcs; ++s)
    cast_array<From, To>(args.srcs[s], args.dsts[s], args.count_elements, workers);
}

}  // namespace braid::coll::device

#define BRAID_CASTS(dtype, Format)                                                            \
  extern "C" __global__ void __launch_bounds__(braid::coll::kReduceThreads)                   \
      braid_widen_##dtype(const __grid_constant__ braid::coll::ReduceArgs args) {             \
    braid::coll::device::cast_arrays<braid::coll::device::Format, braid::coll::device::Fp32>( \
        args);                                                                                \
  }                                                                                           \
  extern "C" __global__ void __launch_bounds__(braid::coll::kReduceThreads)                   \
      braid_narrow_##dtype(const __grid_constant__ braid::coll::ReduceArgs args) {            \
    braid::coll::device::cast_arrays<braid::coll::device::Fp32, braid::coll::device::Format>( \
        args);                                                                                \
  }

BRAID_CASTS(float16, Fp16)
BRAID_CASTS(bfloat16, Bf16)
BRAID_CASTS(float8_e4m3fn, E4m3)
BRAID_CASTS(float8_e5m2, E5m2)
