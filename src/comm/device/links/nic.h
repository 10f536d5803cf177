// The NIC that carries a GPU's part of a message: whether there is one, and which.
#pragma once

#include <string>

#include "base/config.h"
#include "base/status.h"
#include "fabric/types.h"
#include "sys/fabric/api.h"

namespace braid::comm {

struct NicChoice {
  std::string why_off;   // empty: on
  std::string provider;  // of libfabric
  std::string address;
  std::string name;      // "mlx5_0"; of a socket its provider and address
  bool is_real = false;  // false: sockets, which are there for tests
};

/// Whether BRAID_GPU_RDMA is one of its words; invalid_argument.
Status check_nic_wish(const Config& config);

/// By BRAID_GPU_RDMA: off; auto: on where every rank's node has a NIC that is up, sockets not
/// counted; on: that, else BRAID_RDMA_PROVIDER at the first of BRAID_RDMA_ADDRS. A provider that
/// was set is taken in any case. Of several NICs the nearest to the GPU at `gpu_pci` counts, and
/// ranks of a node take those that are equally near in turn. Pure; whether it is on, all ranks find
/// alike. Errors: invalid_argument when the option is not understood.
Result<NicChoice> choose_nic(const Config& config, const fabric::Fabric& fabric, int rank,
                             const std::string& gpu_pci);

/// Whether the NIC's library says that it could write GPU memory itself.
bool reaches_gpus(sys::FabricLibrary& library, const NicChoice& nic);

/// How bytes go: "pinned bounce: NIC mlx5_0 cannot reach GPU memory".
std::string how_in_words(const NicChoice& nic, bool reaches);

}  // namespace braid::comm
