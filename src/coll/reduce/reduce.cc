#include "coll/reduce/reduce.h"

#include <cstring>

#include "base/check.h"
#include "coll/reduce/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace braid::coll {

namespace {

#if defined(__x86_64__)
/// Holds the floating-point modes of the numbers contract: round to nearest even, subnormals kept,
/// no traps. A caller may have switched them for its thread (flush-to-zero is a popular option in
/// training), and one rank that flushes would get other bits than its peers.
class FloatModes {
 public:
  FloatModes() : saved_(_mm_getcsr()) {
    if (is_foreign()) _mm_setcsr(kDefault);
  }
  ~FloatModes() {
    if (is_foreign()) _mm_setcsr(saved_);
  }
  FloatModes(const FloatModes&) = delete;
  FloatModes& operator=(const FloatModes&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;    // all exceptions masked, nearest, no FTZ, no DAZ
  static constexpr unsigned kStickyFlags = 0x3f;  // what has happened, not a mode
  bool is_foreign() const { return (saved_ & ~kStickyFlags) != kDefault; }
  const unsigned saved_;
};

bool cpu_has(Isa isa) noexcept {
  switch (isa) {
    case Isa::kGeneric: return true;
    case Isa::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("f16c");
  }
  return false;
}
#else
// Other processors have one build, and their default modes are the contract's.
struct FloatModes {
  FloatModes() {}
};
bool cpu_has(Isa isa) noexcept { return isa == Isa::kGeneric; }
#endif

Isa best_isa() noexcept {
  if (cpu_has(Isa::kAvx512)) return Isa::kAvx512;
  return cpu_has(Isa::kAvx2) ? Isa::kAvx2 : Isa::kGeneric;
}

Isa chosen_isa() noexcept {
  static const Isa kIsa = best_isa();
  return kIsa;
}

}  // namespace

const char* isa_name(Isa isa) noexcept {
  constexpr const char* kNames[] = {"generic", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

bool has_isa(Isa isa) noexcept { return cpu_has(isa); }

Kernel find_kernel(Isa isa, Dtype dtype, RedOp op) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::find_kernel(dtype, op);
  if (isa == Isa::kAvx2) return avx2::find_kernel(dtype, op);
#endif
  static_cast<void>(isa);
  return generic::find_kernel(dtype, op);
}

void reduce(std::span<const void* const> srcs, void* dst, uint64_t count, Dtype dtype, RedOp op) {
  reduce_partials(srcs, dst, count, dtype, op, srcs.size());
}

void reduce_partials(std::span<const void* const> srcs, void* dst, uint64_t count, Dtype dtype,
                     RedOp op, size_t divisor) {
  BRAID_CHECK(!srcs.empty(), "reduce of {} elements from no source", count);
  BRAID_CHECK(divisor >= srcs.size() && (srcs.size() > 1 || divisor == 1),
              "reduce of {} sources divides by {}", srcs.size(), divisor);
  BRAID_CHECK(is_valid(dtype) && is_valid(op), "reduce with dtype {} and op {}",
              static_cast<int>(dtype), static_cast<int>(op));
  if (count == 0) return;
  if (srcs.size() == 1) {
    if (dst != srcs[0]) std::memcpy(dst, srcs[0], count * dtype_bytes(dtype));
    return;
  }
  const FloatModes modes;
  find_kernel(chosen_isa(), dtype, op)(srcs.data(), srcs.size(), dst, count, divisor);
}

const char* reduce_isa() noexcept { return isa_name(chosen_isa()); }

}  // namespace braid::coll
