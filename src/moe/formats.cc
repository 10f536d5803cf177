// Compiled with -O3: loops over rows are what the CPU spends its time in.
#include "moe/formats.h"

#include <cmath>
#include <cstring>

namespace braid::moe {

namespace {

constexpr float kLargestE4m3 = 448.0F;
constexpr float kLeastAmax = 1e-4F;
constexpr uint8_t kNanE4m3 = 0x7f;
constexpr size_t kRun = 256;  // elements that are fp32 at a time

uint16_t bf16_at(const std::byte* from, size_t i) {
  uint16_t bits = 0;
  std::memcpy(&bits, from + 2 * i, sizeof bits);
  return bits;
}

// A number below 448.5 in magnitude, or so large that it saturates; not NaN.
uint8_t round_to_e4m3(float value) {
  constexpr uint32_t kRebias = 120U << 23;       // between the exponents' zeros
  constexpr uint32_t kLeastNormal = 121U << 23;  // 2^-6
  constexpr float kMagic = 16384.0F;             // 2^14: its unit is 2^-9, the least subnormal
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - kRebias + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kMagic) -
                             std::bit_cast<uint32_t>(kMagic);
  const uint32_t capped = normal > 0x7e ? 0x7e : normal;
  return static_cast<uint8_t>((magnitude < kLeastNormal ? subnormal : capped) |
                              (bits >> 24 & 0x80));
}

// 2^e with e = ceil(log2(ratio)), ratio a normal positive number.
float ceil_power_of_2(float ratio) {
  const auto bits = std::bit_cast<uint32_t>(ratio);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffff) != 0 ? 1 : 0);
  return std::bit_cast<float>(exponent << 23);
}

template <typename Each>
void for_runs(size_t count, Each&& each) {
  for (size_t at = 0; at < count; at += kRun) each(at, count - at < kRun ? count - at : kRun);
}

}  // namespace

float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide =
      exponent == 0x1f ? 0x7f800000 | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
  return std::bit_cast<float>(sign | wide);
}

uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude < 113U << 23) {  // below 2^-14: the adder rounds to a unit of 2^-24
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000));
  }
  const uint32_t rounded = (magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  return static_cast<uint16_t>(sign | (rounded > 0x7c00 ? 0x7c00 : rounded));
}

float e4m3_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 0xf, fraction = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000U);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (bits & 0x80) != 0 ? -value : value;
}

uint8_t float_to_e4m3(float value) { return std::isnan(value) ? kNanE4m3 : round_to_e4m3(value); }

void widen(Dtype dtype, const std::byte* from, float* to, size_t count) {
  if (dtype == Dtype::kFloat32) {
    std::memcpy(to, from, 4 * count);
  } else if (dtype == Dtype::kBfloat16) {
    for (size_t i = 0; i < count; ++i) to[i] = bf16_to_float(bf16_at(from, i));
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = fp16_to_float(bf16_at(from, i));
  }
}

void narrow(Dtype dtype, const float* from, std::byte* to, size_t count) {
  if (dtype == Dtype::kFloat32) {
    std::memcpy(to, from, 4 * count);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const uint16_t bits =
        dtype == Dtype::kBfloat16 ? float_to_bf16(from[i]) : float_to_fp16(from[i]);
    std::memcpy(to + 2 * i, &bits, sizeof bits);
  }
}

void add_row(Dtype dtype, const std::byte* x, float* sum, size_t count) {
  const size_t element = dtype_bytes(dtype);
  for_runs(count, [&](size_t at, size_t run) {
    float values[kRun];
    widen(dtype, x + at * element, values, run);
    for (size_t i = 0; i < run; ++i) sum[at + i] += values[i];
  });
}

void add_weighted_row(Dtype dtype, const std::byte* x, float weight, float* sum, size_t count) {
  const size_t element = dtype_bytes(dtype);
  for_runs(count, [&](size_t at, size_t run) {
    float values[kRun];
    widen(dtype, x + at * element, values, run);
    for (size_t i = 0; i < run; ++i) sum[at + i] += weight * values[i];
  });
}

float cast_block(const float* values, uint8_t* out, bool power_of_2) {
  // Magnitudes in the order of their bits, where Inf and NaN are the largest.
  int32_t most = std::bit_cast<int32_t>(kLeastAmax);
  for (int i = 0; i < kScaleBlock; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(values[i]) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  if (most >= 0x7f800000) {
    std::memset(out, kNanE4m3, kScaleBlock);
    return 1.0F;
  }
  const auto amax = std::bit_cast<float>(most);
  float stored = amax * (1.0F / kLargestE4m3);
  float multiplier = kLargestE4m3 / amax;
  if (power_of_2) {
    stored = ceil_power_of_2(stored);
    multiplier = 1.0F / stored;  // exact
  }
  for (int i = 0; i < kScaleBlock; ++i) out[i] = round_to_e4m3(values[i] * multiplier);
  return stored;
}

void cast_row(Dtype dtype, const std::byte* x, uint64_t hidden, ScaleForm form, std::byte* out,
              std::byte* scales) {
  const size_t element = dtype_bytes(dtype);
  for (uint64_t block = 0; block < hidden / kScaleBlock; ++block) {
    float values[kScaleBlock];
    widen(dtype, x + block * kScaleBlock * element, values, kScaleBlock);
    const float scale = cast_block(values, reinterpret_cast<uint8_t*>(out) + block * kScaleBlock,
                                   form != ScaleForm::kFloat);
    if (form == ScaleForm::kUe8m0)
      scales[block] = static_cast<std::byte>(exponent_byte(scale));
    else
      std::memcpy(scales + 4 * block, &scale, sizeof scale);
  }
}

}  // namespace braid::moe
