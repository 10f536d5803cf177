// One-element conversions between the small floats and fp32, for tests, printing and checks;
// reduce() has vectors of the same code. Rounding, NaN and overflow are told in formats.h.
#pragma once

#include <cstdint>

namespace braid::coll {

float fp16_to_float(uint16_t bits) noexcept;
float bf16_to_float(uint16_t bits) noexcept;
float e4m3_to_float(uint8_t bits) noexcept;
float e5m2_to_float(uint8_t bits) noexcept;

uint16_t float_to_fp16(float value) noexcept;
uint16_t float_to_bf16(float value) noexcept;
uint8_t float_to_e4m3(float value) noexcept;
uint8_t float_to_e5m2(float value) noexcept;

}  // namespace braid::coll
