// Messages of middle size on the device: one kernel per call, by stores into the peers' memory
// (coll/direct/direct.cuh).
#pragma once

#include <string_view>

#include "base/config.h"
#include "base/status.h"
#include "coll/device/packets.h"
#include "coll/direct/direct.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// What its kernels ask for in every rank's arena.
inline constexpr std::string_view kDirectArea = "direct";

/// The size of the area for a comm of `num_ranks`; 0 when the option turns direct kernels off.
comm::AreaRequest direct_area(const Config& config, int num_ranks);
/// The same for messages of up to `most`.
comm::AreaRequest direct_area_of(uint64_t most, int num_ranks);

/// Whether a call may go this way; alike on all ranks.
bool fits_direct(const comm::Device& device, plan::Op op, uint64_t bytes);

/// Of a block that moves by bulk copies, dynamic; 0: not on this GPU. A kernel is allowed it once,
/// when it is first used.
uint32_t bulk_shared_bytes(const comm::Device& device);
/// Whether blocks of this rank may move by bulk copies what their addresses allow.
bool can_move_in_bulk(const comm::Device& device);

/// The kernel of a call by direct stores; its buffers do not matter.
Result<sys::Kernel> direct_kernel(comm::Device& device, const CollectiveCall& call);

/// By how many direct kernels in a row, each with a part of every block, a call goes that does not
/// go by one, where its results land in memory that is not registered; 0: by copy engines. Alike on
/// all ranks.
uint64_t num_direct_pieces(const comm::Device& device, plan::Op op, uint64_t bytes);
/// Enqueues it. The call is told as to packets.
Status run_direct(comm::Device& device, sys::Stream stream, const CollectiveCall& call);
/// Enqueues a call as `num_pieces` kernels; behind a barrier that compared what ranks call.
Status run_direct_pieces(comm::Device& device, sys::Stream stream, const CollectiveCall& call,
                         uint64_t num_pieces);

}  // namespace braid::coll::device
