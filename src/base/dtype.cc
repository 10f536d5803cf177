#include "base/dtype.h"

namespace braid {

namespace {
struct Row {
  Dtype dtype;
  uint8_t bytes;
  const char* name;
};
// Names are NumPy's and torch's, so that Python needs no table of its own.
constexpr Row kRows[] = {
    {Dtype::kInt8, 1, "int8"},
    {Dtype::kUint8, 1, "uint8"},
    {Dtype::kInt16, 2, "int16"},
    {Dtype::kUint16, 2, "uint16"},
    {Dtype::kInt32, 4, "int32"},
    {Dtype::kUint32, 4, "uint32"},
    {Dtype::kInt64, 8, "int64"},
    {Dtype::kUint64, 8, "uint64"},
    {Dtype::kFloat16, 2, "float16"},
    {Dtype::kBfloat16, 2, "bfloat16"},
    {Dtype::kFloat32, 4, "float32"},
    {Dtype::kFloat64, 8, "float64"},
    {Dtype::kFloat8E4m3, 1, "float8_e4m3fn"},
    {Dtype::kFloat8E5m2, 1, "float8_e5m2"},
};
constexpr const char* kRedOpNames[] = {"sum", "prod", "max", "min", "avg"};

const Row* find(Dtype dtype) noexcept {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return &row;
  return nullptr;
}
}  // namespace

size_t dtype_bytes(Dtype dtype) noexcept {
  const Row* row = find(dtype);
  return row ? row->bytes : 0;
}

const char* dtype_name(Dtype dtype) noexcept {
  const Row* row = find(dtype);
  return row ? row->name : "unknown";
}

const char* redop_name(RedOp op) noexcept {
  return is_valid(op) ? kRedOpNames[static_cast<int>(op)] : "unknown";
}

bool is_valid(Dtype dtype) noexcept { return find(dtype) != nullptr; }
bool is_valid(RedOp op) noexcept { return static_cast<int>(op) <= static_cast<int>(RedOp::kAvg); }

Result<Dtype> parse_dtype(std::string_view name) {
  for (const Row& row : kRows)
    if (name == row.name) return row.dtype;
  return invalid_argument(
      "dtype '{}' is unknown; braid has int8 to uint64, float16, bfloat16, float32, float64, "
      "float8_e4m3fn, float8_e5m2",
      name);
}

Result<RedOp> parse_redop(std::string_view name) {
  for (int i = 0; i < 5; ++i)
    if (name == kRedOpNames[i]) return static_cast<RedOp>(i);
  return invalid_argument("reduction op '{}' is unknown; braid has sum, prod, min, max, avg", name);
}

}  // namespace braid
