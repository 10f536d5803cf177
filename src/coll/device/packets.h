// Small messages on the device: one kernel per call, by packets (coll/packets/packets.cuh).
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "coll/packets/packets.h"
#include "comm/device/device.h"

namespace braid::coll::device {

struct PacketCall {
  plan::Op op;
  sys::DevicePtr send;
  sys::DevicePtr recv;
  uint64_t bytes;  // as PacketArgs counts
  Dtype dtype = Dtype::kUint8;
  RedOp redop = RedOp::kSum;
  int root = 0;
  uint64_t stride_bytes = 0;  // of an array's blocks, for direct kernels; 0: as large as they are
};

/// The size of the packet area for a comm of `num_ranks`.
uint64_t packet_area_for(const Config& config, int num_ranks);

/// A call's larger buffer: all ranks' blocks.
uint64_t message_bytes(const comm::Device& device, plan::Op op, uint64_t bytes);

/// Where a sum's entries are: the integers' or the floats' fatbin.
bool is_whole(Dtype dtype);

/// Whether a call is small enough for packets; alike on all ranks.
bool fits_packets(const comm::Device& device, plan::Op op, uint64_t bytes);

/// The kernel of a call by packets; its buffers do not matter.
Result<sys::Kernel> packet_kernel(comm::Device& device, const PacketCall& call);

/// Enqueues it.
Status run_packets(comm::Device& device, sys::Stream stream, const PacketCall& call);

}  // namespace braid::coll::device
