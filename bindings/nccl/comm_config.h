// A communicator's ncclConfig_t, as far as it says how fast the communicator is: what was raced under
// one says nothing of another.
#pragma once

#include <cstdint>

namespace braid::nccl {

/// Of blocks, clusters and policies; 0 where nothing is asked for. `config` may be null, or of any
/// release: fields were only ever added, and it begins with its size.
uint64_t speed_of_config(const void* config);

}  // namespace braid::nccl
