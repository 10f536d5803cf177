#include "coll/reduce/casts.h"

#include <cstring>

#include "base/check.h"
#include "coll/reduce/elements.cuh"

namespace braid::coll {

namespace {

template <typename From, typename To>
void cast(const void* from, void* to, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;  // little-endian, as all machines here
    std::memcpy(&bits, static_cast<const char*>(from) + i * From::kBytes, From::kBytes);
    bits = To::round(From::widen(bits));
    std::memcpy(static_cast<char*>(to) + i * To::kBytes, &bits, To::kBytes);
  }
}

}  // namespace

void widen(const void* small, float* wide, uint64_t count, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return cast<device::Fp16, device::Fp32>(small, wide, count);
    case Dtype::kBfloat16: return cast<device::Bf16, device::Fp32>(small, wide, count);
    case Dtype::kFloat8E4m3: return cast<device::E4m3, device::Fp32>(small, wide, count);
    case Dtype::kFloat8E5m2: return cast<device::E5m2, device::Fp32>(small, wide, count);
    default: BRAID_CHECK(false, "{} is no smaller float", dtype_name(dtype));
  }
}

void narrow(const float* wide, void* small, uint64_t count, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return cast<device::Fp32, device::Fp16>(wide, small, count);
    case Dtype::kBfloat16: return cast<device::Fp32, device::Bf16>(wide, small, count);
    case Dtype::kFloat8E4m3: return cast<device::Fp32, device::E4m3>(wide, small, count);
    case Dtype::kFloat8E5m2: return cast<device::Fp32, device::E5m2>(wide, small, count);
    default: BRAID_CHECK(false, "{} is no smaller float", dtype_name(dtype));
  }
}

}  // namespace braid::coll
