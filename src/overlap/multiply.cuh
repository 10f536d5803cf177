// One asynchronous multiplication of the tensor cores by a warpgroup (sm_90a): d += a * b, a of 64
// x 16 and b of 16 x N elements in shared memory, d in the registers of 128 threads.
//
// Operands lie in rows of 128 bytes, their sixteen-byte pieces permuted by the row (the swizzle that
// tensor maps write). A matrix whose rows run along K is what a GEMM with weights [N, K] reads; with
// weights [K, N] the rows of b run along N instead (kRowsAlongN).
//
// In d thread t has, of rows 16 * (t / 32) + t % 32 / 4 and that + 8, columns 8 * i + t % 4 * 2 and
// the next: elements 4 * i, 4 * i + 1 of the first row, 4 * i + 2, 4 * i + 3 of the second.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace braid::overlap {

/// Rows along K: eight rows of 128 bytes are 1,024 bytes, and so far apart are the next eight.
__device__ __forceinline__ uint64_t operand_along_k(uint32_t at) {
  return uint64_t{(at & 0x3FFFF) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
/// Rows along N, 64 elements each: the next eight rows, of K, are 1,024 bytes away, the next 64
/// columns `columns_bytes`.
__device__ __forceinline__ uint64_t operand_along_n(uint32_t at, uint32_t columns_bytes) {
  return uint64_t{(at & 0x3FFFF) >> 4} | uint64_t{columns_bytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

/// Before the first multiplication, and when registers of d have been touched since.
__device__ __forceinline__ void begin_multiplying() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void close_multiplications() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kOpen>
__device__ __forceinline__ void wait_until_multiplied() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}

// clang-format off
#define BRAID_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BRAID_D16(i) BRAID_D4(i), BRAID_D4(i + 4), BRAID_D4(i + 8), BRAID_D4(i + 12)
#define BRAID_D64(i) BRAID_D16(i), BRAID_D16(i + 16), BRAID_D16(i + 32), BRAID_D16(i + 48)
#define BRAID_MULTIPLY_128(type)                                              \
  asm volatile(                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                    \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
      "%59, %60, %61, %62, %63" \
      "}, %64, %65, adds, 1, 1, 0, %67;\n}"                          \
      : BRAID_D64(0) : "l"(a), "l"(b), "r"(adds), "n"(kRowsAlongN ? 1 : 0))

#define BRAID_MULTIPLY_256(type)                                              \
  asm volatile(                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                    \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
      "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
      "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
      "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
      "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
      "}, %128, %129, adds, 1, 1, 0, %131;\n}"                          \
      : BRAID_D64(0), BRAID_D64(64) : "l"(a), "l"(b), "r"(adds), "n"(kRowsAlongN ? 1 : 0))

/// adds 0: d is set, not added to.
template <typename T, bool kRowsAlongN>
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int adds) {
  if constexpr (__is_same(T, __nv_bfloat16)) BRAID_MULTIPLY_128("bf16");
  else BRAID_MULTIPLY_128("f16");
}
template <typename T, bool kRowsAlongN>
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int adds) {
  if constexpr (__is_same(T, __nv_bfloat16)) BRAID_MULTIPLY_256("bf16");
  else BRAID_MULTIPLY_256("f16");
}
// clang-format on

#undef BRAID_MULTIPLY_256
#undef BRAID_MULTIPLY_128
#undef BRAID_D64
#undef BRAID_D16
#undef BRAID_D4

}  // namespace braid::overlap

#endif
