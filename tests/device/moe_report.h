// What moe_check says, and rows of random elements.
#pragma once

#include <bit>
#include <cmath>

#include "device/moe_ranks.h"
#include "moe/formats.h"
#include "moe/reference.h"

namespace braid::test {

inline int passed = 0;
inline int failed = 0;
inline constexpr int kMostFailures = 12;  // each may take a deadline
inline void report(const std::string& name, bool is_right) {
  ++(is_right ? passed : failed);
  std::printf("%s %s\n", is_right ? "ok  " : "FAIL", name.c_str());
  std::fflush(stdout);
  if (failed < kMostFailures) return;
  std::printf("moe: %d passed, %d failed, and no more were tried\n", passed, failed);
  std::exit(1);
}

/// Says where the first difference is: in which row of `row_bytes`, at which byte of it.
inline bool same(int rank, const char* what, const Bytes& want, const Bytes& got,
                 uint64_t row_bytes) {
  if (want == got) return true;
  size_t at = 0, differ = 0;
  for (size_t i = want.size(); i-- > 0;)
    if (want[i] != got[i]) {
      at = i;
      ++differ;
    }
  const size_t row = at / row_bytes;
  std::printf("     rank %d, %s: %zu of %zu bytes differ, first in row %zu at byte %zu: expected",
              rank, what, differ, want.size(), row, at % row_bytes);
  for (const Bytes* each : {&want, &got}) {
    for (size_t i = at / 8 * 8; i < std::min(want.size(), at / 8 * 8 + 16); ++i)
      std::printf(" %02x", static_cast<unsigned>((*each)[i]));
    std::printf(each == &want ? ", seen" : "\n");
  }
  return false;
}

inline const char* type_name(Dtype dtype) {
  return dtype == Dtype::kBfloat16 ? "bf16" : dtype == Dtype::kFloat16 ? "fp16" : "fp32";
}

/// Numbers of both signs and of sizes that change from block to block of 128 channels. `with_odd`:
/// blocks of zeros, and some that hold NaN or Inf.
inline Bytes random_rows(Dtype dtype, uint64_t bytes, uint64_t seed, bool with_odd) {
  const uint64_t count = bytes / dtype_bytes(dtype);
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t block = random_bits(seed + 1, i / 128), bits = random_bits(seed, i);
    const int exponent = static_cast<int>(block % 14) - 7;
    const float mantissa = static_cast<float>(static_cast<int32_t>(bits & 0xffffff) - 0x800000);
    values[i] = std::ldexp(mantissa, exponent - 23);
    if (!with_odd) continue;
    if (block % 11 == 0) values[i] = bits % 3 == 0 ? -0.0F : 0.0F;
    if (block % 13 == 1 && bits % 50 == 0)
      values[i] = std::bit_cast<float>(bits % 100 == 0 ? 0x7fc00000U : 0xff800000U);
    if (block % 17 == 2) values[i] *= 1e-6F;  // below the least amax
  }
  Bytes rows(bytes);
  moe::narrow(dtype, values.data(), rows.data(), count);
  return rows;
}

}  // namespace braid::test
