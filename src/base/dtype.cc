#include "base/dtype.h"

namespace braid {

namespace {
struct Row {
  Dtype dtype;
  const char* name;
};
// Names are NumPy's and torch's, so that Python needs no table of its own.
constexpr Row kRows[] = {
    {Dtype::kInt8, "int8"},
    {Dtype::kUint8, "uint8"},
    {Dtype::kInt16, "int16"},
    {Dtype::kUint16, "uint16"},
    {Dtype::kInt32, "int32"},
    {Dtype::kUint32, "uint32"},
    {Dtype::kInt64, "int64"},
    {Dtype::kUint64, "uint64"},
    {Dtype::kFloat16, "float16"},
    {Dtype::kBfloat16, "bfloat16"},
    {Dtype::kFloat32, "float32"},
    {Dtype::kFloat64, "float64"},
    {Dtype::kFloat8E4m3, "float8_e4m3fn"},
    {Dtype::kFloat8E5m2, "float8_e5m2"},
};
constexpr const char* kRedOpNames[] = {"sum", "prod", "max", "min", "avg"};

const Row* find(Dtype dtype) noexcept {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return &row;
  return nullptr;
}
}  // namespace

size_t dtype_bytes(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kInt8:
    case Dtype::kUint8:
    case Dtype::kFloat8E4m3:
    case Dtype::kFloat8E5m2: return 1;
    case Dtype::kInt16:
    case Dtype::kUint16:
    case Dtype::kFloat16:
    case Dtype::kBfloat16: return 2;
    case Dtype::kInt32:
    case Dtype::kUint32:
    case Dtype::kFloat32: return 4;
    case Dtype::kInt64:
    case Dtype::kUint64:
    case Dtype::kFloat64: return 8;
  }
  return 0;
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
