// Element types and reduction operators, with the numbers NCCL gives them (nccl.h: ncclDataType_t,
// ncclRedOp_t), so that a shim casts instead of mapping. int16 and uint16 are braid's own and lie
// above NCCL's range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace braid {

enum class Dtype : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4m3 = 10,
  kFloat8E5m2 = 11,
  kInt16 = 64,
  kUint16 = 65,
};

enum class RedOp : uint8_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

/// All element types, for tests and tables.
inline constexpr Dtype kAllDtypes[] = {
    Dtype::kInt8,    Dtype::kUint8,   Dtype::kInt16,      Dtype::kUint16,    Dtype::kInt32,
    Dtype::kUint32,  Dtype::kInt64,   Dtype::kUint64,     Dtype::kFloat16,   Dtype::kBfloat16,
    Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2};
inline constexpr RedOp kAllRedOps[] = {RedOp::kSum, RedOp::kProd, RedOp::kMin, RedOp::kMax,
                                       RedOp::kAvg};

/// Size of one element in bytes; 0 for a value outside the enum.
size_t dtype_bytes(Dtype dtype) noexcept;
/// "float32", "bfloat16", "float8_e4m3fn"...; "unknown" outside the enum.
const char* dtype_name(Dtype dtype) noexcept;
const char* redop_name(RedOp op) noexcept;
Result<Dtype> parse_dtype(std::string_view name);
Result<RedOp> parse_redop(std::string_view name);
bool is_valid(Dtype dtype) noexcept;
bool is_valid(RedOp op) noexcept;

}  // namespace braid
