// The exported names as numbers, in the order of names.inc.
#pragma once

#include <array>
#include <cstddef>

namespace braid::nccl {

enum class Name : size_t {
#define NAME(name) k##name,
#include "bindings/nccl/names.inc"
#undef NAME
  kNumNames
};

inline constexpr size_t kNumNames = static_cast<size_t>(Name::kNumNames);

inline constexpr std::array<const char*, kNumNames> kSymbols = {
#define NAME(name) "nccl" #name,
#include "bindings/nccl/names.inc"
#undef NAME
};

constexpr const char* symbol_of(Name name) { return kSymbols[static_cast<size_t>(name)]; }

}  // namespace braid::nccl
