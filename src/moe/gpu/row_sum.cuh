// RowSum of row_sum.h, of one vector: added up in fp32 in the order in which they come, each sum rounded,
// and rounded once more. The first one is not added to a zero.
#pragma once

#include "moe/gpu/rows.cuh"

namespace braid::moe::gpu {

template <typename Type>
class RowSum {
 public:
  __device__ __forceinline__ RowSum() {
#pragma unroll
    for (int c = 0; c < kLanes<Type>; ++c) sum_[c] = kNothing;
  }
  __device__ __forceinline__ void add(const uint4& v) {
    float values[kLanes<Type>];
    Type::widen(v, values);
#pragma unroll
    for (int c = 0; c < kLanes<Type>; ++c)
      sum_[c] = kIsExact && is_empty_ ? values[c] : __fadd_rn(sum_[c], values[c]);
    is_empty_ = false;
  }
  __device__ __forceinline__ uint4 rounded() const {
    return is_empty_ ? make_uint4(0, 0, 0, 0) : Type::narrow(sum_);
  }

 private:
  // What is added to this is itself, zeros of both signs too, so nobody has to ask whether it is the
  // first. Not so the bits of a NaN, which narrow() makes one of anyhow; those of fp32 are kept.
  static constexpr float kNothing = -0.0F;
  static constexpr bool kIsExact = Type::kBytes == 4;
  float sum_[kLanes<Type>];
  bool is_empty_ = true;
};

/// sum += weight * row, from zero on, the product rounded before it is added.
template <typename Type>
class WeightedSum {
 public:
  __device__ __forceinline__ void add(float weight, const uint4& v) {
    float values[kLanes<Type>];
    Type::widen(v, values);
#pragma unroll
    for (int c = 0; c < kLanes<Type>; ++c)
      sum_[c] = __fadd_rn(sum_[c], __fmul_rn(weight, values[c]));
  }
  __device__ __forceinline__ uint4 rounded() const { return Type::narrow(sum_); }

 private:
  float sum_[kLanes<Type>] = {};
};

}  // namespace braid::moe::gpu
