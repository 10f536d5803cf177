// CopyTable: what a dispatch with weights leaves for a combine that sums by rank, in host memory or a
// GPU's.
#pragma once

#include <cstdint>

namespace braid::moe {

/// Which rows came of one token, of a dispatch with weights; M of every source, in the order of tokens.
/// Behind the last copy that came of a source it says nothing.
struct CopyTable {
  int32_t* counts = nullptr;  // [N]: copies that came
  int32_t* tokens = nullptr;  // [N, M]
  int32_t* places = nullptr;  // [N, M, K] rows of [L, M*N], -1 for choices elsewhere
  float* weights = nullptr;   // [N, M, K]; nothing of choices elsewhere

  bool is_whole() const {
    return counts != nullptr && tokens != nullptr && places != nullptr && weights != nullptr;
  }
};

}  // namespace braid::moe
