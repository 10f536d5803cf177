#include "coll/reduce/reduce_names.h"

namespace braid::coll {

namespace {

struct Row {
  Dtype dtype;
  const char* reduce[5];  // in the order of RedOp
  const char* packets[5];
  const char* lines[5];
  const char* direct[5];
};

#define BRAID_NAMES(family, dtype)                                      \
  {"braid_" family "_" dtype "_sum", "braid_" family "_" dtype "_prod", \
   "braid_" family "_" dtype "_max", "braid_" family "_" dtype "_min",  \
   "braid_" family "_" dtype "_avg"}
#define BRAID_ROW(dtype, name)                                                     \
  {Dtype::dtype, BRAID_NAMES("reduce", name), BRAID_NAMES("packets_reduce", name), \
   BRAID_NAMES("lines_reduce", name), BRAID_NAMES("direct_reduce", name)}

constexpr Row kRows[] = {
    BRAID_ROW(kInt8, "int8"),
    BRAID_ROW(kUint8, "uint8"),
    BRAID_ROW(kInt16, "int16"),
    BRAID_ROW(kUint16, "uint16"),
    BRAID_ROW(kInt32, "int32"),
    BRAID_ROW(kUint32, "uint32"),
    BRAID_ROW(kInt64, "int64"),
    BRAID_ROW(kUint64, "uint64"),
    BRAID_ROW(kFloat16, "float16"),
    BRAID_ROW(kBfloat16, "bfloat16"),
    BRAID_ROW(kFloat32, "float32"),
    BRAID_ROW(kFloat64, "float64"),
    BRAID_ROW(kFloat8E4m3, "float8_e4m3fn"),
    BRAID_ROW(kFloat8E5m2, "float8_e5m2"),
};

const Row* find(Dtype dtype, RedOp op) noexcept {
  if (!is_valid(op)) return nullptr;
  for (const Row& row : kRows)
    if (row.dtype == kernel_dtype(dtype, op)) return &row;
  return nullptr;
}

}  // namespace

Dtype kernel_dtype(Dtype dtype, RedOp op) noexcept {
  if (op != RedOp::kSum && op != RedOp::kProd) return dtype;
  switch (dtype) {
    case Dtype::kInt8: return Dtype::kUint8;
    case Dtype::kInt16: return Dtype::kUint16;
    case Dtype::kInt32: return Dtype::kUint32;
    case Dtype::kInt64: return Dtype::kUint64;
    default: return dtype;
  }
}

const char* reduce_kernel_name(Dtype dtype, RedOp op) noexcept {
  const Row* row = find(dtype, op);
  return row ? row->reduce[static_cast<int>(op)] : nullptr;
}

const char* packet_reduce_kernel_name(Dtype dtype, RedOp op) noexcept {
  const Row* row = find(dtype, op);
  return row ? row->packets[static_cast<int>(op)] : nullptr;
}

const char* line_reduce_kernel_name(Dtype dtype, RedOp op) noexcept {
  const Row* row = find(dtype, op);
  return row ? row->lines[static_cast<int>(op)] : nullptr;
}

const char* direct_reduce_kernel_name(Dtype dtype, RedOp op) noexcept {
  const Row* row = find(dtype, op);
  return row ? row->direct[static_cast<int>(op)] : nullptr;
}

}  // namespace braid::coll
