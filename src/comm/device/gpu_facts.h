// What a comm knows of its ranks' GPUs once its Device is made. Facts only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace braid::comm {

struct GpuFacts {
  int num_ranks = 1;
  int least_sms = 0;               // multiprocessors of the smallest GPU; of two ranks or more
  uint32_t most_shared_bytes = 0;  // that one block of this GPU may have, static and dynamic
  bool are_shared = false;  // two ranks have one GPU: where they take turns, a wait lasts as long

  uint64_t sum_blocks = 0;  // that a sum may use, by an option; 0: as it likes

  /// Blocks of each rank that find a place where all ranks are on one GPU, one on a multiprocessor.
  uint32_t shared_blocks() const {
    return static_cast<uint32_t>(std::max(least_sms / num_ranks, 1));
  }
};

}  // namespace braid::comm
