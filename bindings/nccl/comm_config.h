// A communicator's ncclConfig_t, as far as it says how fast the communicator is: what was raced under
// one says nothing of another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace braid::nccl {

/// Of blocks, clusters and policies; 0 where nothing is asked for. `config` may be null, or of any
/// release: fields were only ever added, and it begins with its size.
uint64_t speed_of_config(const void* config);

/// The ncclConfig_t of release 2.18, which all later ones read.
struct RailConfig {
  size_t size;
  uint32_t magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share;
};
/// Of communicators between nodes: blocking, and of no more blocks, each of which has buffers of its
/// own, than NCCL needs to give one peer two of them, which it wants for one NIC: among `num_nodes`
/// it gives two where there is a block for every two of them, and less to each where there is not
/// (ncclTopoGetNchannels, 2.28).
RailConfig config_of_rails(int num_nodes);

}  // namespace braid::nccl
