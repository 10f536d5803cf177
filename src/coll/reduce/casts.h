// Casts between fp32 and the smaller floats, for sums whose partials are carried in fp32
// (coll/nodes/stages.h): the same conversions as inside reduce(), so that a sum that is cast at its
// ends has the bits of one that is not.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace braid::coll {

/// Whether `dtype` is a float that fp32 holds every number of, and that is not fp32.
constexpr bool is_smaller_float(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat8E4m3 ||
         dtype == Dtype::kFloat8E5m2;
}
/// Whether a reduction rounds, so that partials in fp32 differ from partials in the type.
constexpr bool rounds_partials(Dtype dtype, RedOp op) {
  return is_smaller_float(dtype) && op != RedOp::kMin && op != RedOp::kMax;
}

/// wide[i] = small[i], exactly; every NaN is the one NaN. `dtype` is a smaller float.
void widen(const void* small, float* wide, uint64_t count, Dtype dtype);
/// small[i] = wide[i], rounded to nearest even as reduce() does.
void narrow(const float* wide, void* small, uint64_t count, Dtype dtype);

/// "braid_widen_<dtype>" and "braid_narrow_<dtype>", which take ReduceArgs and cast every source to
/// the destination of its number; nullptr for other dtypes.
constexpr const char* widen_kernel_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return "braid_widen_float16";
    case Dtype::kBfloat16: return "braid_widen_bfloat16";
    case Dtype::kFloat8E4m3: return "braid_widen_float8_e4m3fn";
    case Dtype::kFloat8E5m2: return "braid_widen_float8_e5m2";
    default: return nullptr;
  }
}
constexpr const char* narrow_kernel_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return "braid_narrow_float16";
    case Dtype::kBfloat16: return "braid_narrow_bfloat16";
    case Dtype::kFloat8E4m3: return "braid_narrow_float8_e4m3fn";
    case Dtype::kFloat8E5m2: return "braid_narrow_float8_e5m2";
    default: return nullptr;
  }
}

}  // namespace braid::coll
