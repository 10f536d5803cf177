// Which way a call goes, alike on all ranks: the one place that says so, for the calls themselves
// and for explain(). And the calls that are kernels and nothing else.
#pragma once

#include "base/status.h"
#include "coll/device/packets.h"
#include "comm/device/device.h"
#include "plan/plan.h"

namespace braid::coll::device {

enum class Path { kNone, kPackets, kLines, kDirect, kCopyEngines };

/// `bytes` as PacketCall counts them. kNone: there is one rank.
Path path_of(const comm::Device& device, plan::Op op, uint64_t bytes);

/// Whether a call goes by one kernel, of packets, lines or direct.
bool fits_one_kernel(const comm::Device& device, plan::Op op, uint64_t bytes);
/// Whether that kernel is one whose threads receive into what they alone have sent, packets or
/// lines: those may work in place where blocks change their place, and copy a root's own.
bool fits_thread_kernel(const comm::Device& device, plan::Op op, uint64_t bytes);
/// Enqueues it.
Status run_one_kernel(comm::Device& device, sys::Stream stream, const PacketCall& call);

/// Enqueues so many direct kernels, one or more, behind a barrier: it finds out where ranks call
/// something else, or one has registered its memory.
Status run_direct_pieces(comm::Device& device, sys::Stream stream, const PacketCall& call,
                         uint64_t num_pieces, uint64_t signature);

}  // namespace braid::coll::device
