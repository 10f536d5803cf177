// What a letter of the handover says about the descriptors in it. Pure functions, so that a fuzzer
// can call them: a box takes letters of any process of this user.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace braid::nvlink {

/// A letter's parts: "RANK FIRST COUNT", or "RANK FIRST 0 WHY" when there is nothing to come.
struct HandoverNote {
  int rank = -1;
  uint64_t first = 0;
  uint64_t count = 0;
  std::string why;
};

/// Of at most sys::kMostTextOfLetter bytes: a long `why` loses its end.
std::string encode(const HandoverNote& note);
/// internal when it is none, or is not of another one of `size` ranks than `rank`.
Result<HandoverNote> decode_note(const std::string& text, int rank, int size);

}  // namespace braid::nvlink
