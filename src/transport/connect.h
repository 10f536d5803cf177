// Opening lanes. Every function here is collective: all ranks of the group call it with the same
// options; the ends meet through group.exchange(). When one rank cannot open its end, EVERY rank
// gets a Status that names that rank and its reason, so that all ranks agree which links exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/shm/api.h"
#include "transport/host/doorbell.h"
#include "transport/lane.h"

namespace braid::transport {

struct HostLaneOptions {
  uint32_t slot_bytes = 64 << 10;  // payload of one slot = max_piece_bytes
  uint32_t depth_pieces = 16;
  std::string host_id = {};             // BRAID_HOST_ID; empty: the machine's own
  sys::SharedMemory* memory = nullptr;  // null: the kernel's; tests bring one that fails
};

struct RdmaLaneOptions {
  std::string name = "rdma";  // link name
  // Libfabric provider: tcp, shm, net, sockets; efa and verbs where there is a device.
  std::string provider = "tcp";
  // Local address whose interface this lane uses; ignored by provider shm.
  std::string address = "127.0.0.1";
  uint32_t slot_bytes = 64 << 10;
  uint32_t depth_pieces = 16;
};

/// Holds a lane to a rate and gives it a latency, for experiments on machines without the real
/// link.
struct PaceOptions {
  double rate_gbps = 0;    // per rank and direction (egress and ingress each); 0 = not limited
  int64_t latency_ns = 0;  // added before an arrival is visible
};

/// Direct puts into rings in the peer's shared memory. `doorbell` must outlive the lane.
/// unavailable when the ranks do not share a host, exhausted when memory cannot be had.
Result<std::unique_ptr<Lane>> connect_shm(group::Group& group, Doorbell& doorbell,
                                          const HostLaneOptions& options, Deadline deadline);
/// One ring per rank in shared memory, written once and read by all peers.
Result<std::unique_ptr<Lane>> connect_staged(group::Group& group, Doorbell& doorbell,
                                             const HostLaneOptions& options, Deadline deadline);
/// One libfabric endpoint on one interface. unavailable when libfabric, the provider or the address
/// is not there.
Result<std::unique_ptr<Lane>> connect_rdma(group::Group& group, const RdmaLaneOptions& options,
                                           Deadline deadline);

/// Holds a lane to a rate by a clock per direction. caps().is_paced becomes true.
std::unique_ptr<Lane> paced(std::unique_ptr<Lane> lane, const PaceOptions& options, int num_ranks);

}  // namespace braid::transport
