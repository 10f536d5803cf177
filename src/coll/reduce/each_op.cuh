// Which reduce kernels there are, said once for all that have them: the ring's (ring_body.cuh),
// those by packets, by lines and the direct ones. KERNEL(dtype, op, Format, kOp, ...) makes one
// entry; what else a kernel takes comes behind.
#pragma once

#include "coll/reduce/elements.cuh"

/// Sums and products of signed integers are those of unsigned ones (reduce_names.h).
#define BRAID_EACH_SIGNED_OP(KERNEL, dtype, Format, ...)      \
  KERNEL(dtype, max, Format, kMax __VA_OPT__(, ) __VA_ARGS__) \
  KERNEL(dtype, min, Format, kMin __VA_OPT__(, ) __VA_ARGS__) \
  KERNEL(dtype, avg, Format, kAvg __VA_OPT__(, ) __VA_ARGS__)
#define BRAID_EACH_OP(KERNEL, dtype, Format, ...)               \
  KERNEL(dtype, sum, Format, kSum __VA_OPT__(, ) __VA_ARGS__)   \
  KERNEL(dtype, prod, Format, kProd __VA_OPT__(, ) __VA_ARGS__) \
  BRAID_EACH_SIGNED_OP(KERNEL, dtype, Format __VA_OPT__(, ) __VA_ARGS__)

/// Of all integers.
#define BRAID_EACH_INTEGER(KERNEL, ...)                                          \
  BRAID_EACH_SIGNED_OP(KERNEL, int8, Whole<int8_t> __VA_OPT__(, ) __VA_ARGS__)   \
  BRAID_EACH_OP(KERNEL, uint8, Whole<uint8_t> __VA_OPT__(, ) __VA_ARGS__)        \
  BRAID_EACH_SIGNED_OP(KERNEL, int16, Whole<int16_t> __VA_OPT__(, ) __VA_ARGS__) \
  BRAID_EACH_OP(KERNEL, uint16, Whole<uint16_t> __VA_OPT__(, ) __VA_ARGS__)      \
  BRAID_EACH_SIGNED_OP(KERNEL, int32, Whole<int32_t> __VA_OPT__(, ) __VA_ARGS__) \
  BRAID_EACH_OP(KERNEL, uint32, Whole<uint32_t> __VA_OPT__(, ) __VA_ARGS__)      \
  BRAID_EACH_SIGNED_OP(KERNEL, int64, Whole<int64_t> __VA_OPT__(, ) __VA_ARGS__) \
  BRAID_EACH_OP(KERNEL, uint64, Whole<uint64_t> __VA_OPT__(, ) __VA_ARGS__)
