// What a flag says besides its number: of which call the phase is, and how much was pushed. Laid out
// alike for the host's compiler and the device's.
#pragma once

#include <cstdint>

#include "moe/window_layout.h"

namespace braid::moe {

enum class CallKind : uint32_t {
  kNone = 0,
  kDispatch = 1,
  kCombine = 2,
  kLowLatencyDispatch = 3,
  kLowLatencyCombine = 4,
  kMeet = 5,
};

/// What must be alike on all ranks in one phase.
struct CallShape {
  CallKind kind = CallKind::kNone;
  uint32_t dtype = 0;  // of rows, a braid::Dtype
  uint32_t num_experts = 0;
  uint32_t num_topk = 0;
  uint32_t max_tokens = 0;  // low latency only
  uint32_t row_bytes = 0;
  uint32_t side_bytes = 0;  // scales, weights and other payload of a row
  uint32_t options = 0;
  uint32_t of_phase = 0;  // combine: the phase of its dispatch, in 32 bits

  friend bool operator==(const CallShape&, const CallShape&) = default;
};

/// The words of a flag line.
struct FlagWords {
  CallShape shape;
  uint32_t rows = 0;        // pushed to the reader in this phase
  uint32_t total_rows = 0;  // in all phases of the call
  uint32_t num_tokens = 0;  // of the source
  uint32_t call = 0;        // number of the call at the source
};
static_assert(sizeof(FlagWords) <= kNumberOffset);

}  // namespace braid::moe
