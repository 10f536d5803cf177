#include "coll/reduce/convert.h"

#include "coll/reduce/formats.h"

namespace braid::coll {

float fp16_to_float(uint16_t bits) noexcept { return generic::Fp16::to_float(bits); }
float bf16_to_float(uint16_t bits) noexcept { return generic::Bf16::to_float(bits); }
float e4m3_to_float(uint8_t bits) noexcept { return generic::E4m3::to_float(bits); }
float e5m2_to_float(uint8_t bits) noexcept { return generic::E5m2::to_float(bits); }

uint16_t float_to_fp16(float value) noexcept {
  return static_cast<uint16_t>(generic::Fp16::from_float(value));
}
uint16_t float_to_bf16(float value) noexcept {
  return static_cast<uint16_t>(generic::Bf16::from_float(value));
}
uint8_t float_to_e4m3(float value) noexcept {
  return static_cast<uint8_t>(generic::E4m3::from_float(value));
}
uint8_t float_to_e5m2(float value) noexcept {
  return static_cast<uint8_t>(generic::E5m2::from_float(value));
}

}  // namespace braid::coll
