// FNV-1a, 64 bits: a fixed published function, so that what one build has written another one
// reads. Short and evenly spread, no secret: whoever picks the text can make two texts meet.
#pragma once

#include <cstdint>
#include <string_view>

namespace braid {

inline constexpr uint64_t kFnvStart = 0xcbf29ce484222325;
inline constexpr uint64_t kFnvPrime = 0x100000001b3;

/// `hash` is what came before: of two texts one after the other, fnv1a(second, fnv1a(first)).
constexpr uint64_t fnv1a(std::string_view text, uint64_t hash = kFnvStart) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime;
  return hash;
}

}  // namespace braid
