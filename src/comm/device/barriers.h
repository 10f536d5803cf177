// Barriers: how ranks meet on their streams, by kernels on the signal pad (transport/nvlink/barrier.h).
//
// Threads: as comm::Device.
#pragma once

#include "base/status.h"
#include "comm/device/kernel_cache.h"
#include "sys/cuda/api.h"
#include "transport/nvlink/barrier.h"
#include "transport/nvlink/short_blocks.h"
#include "transport/nvlink/team.h"

namespace braid::comm {

class Barriers {
 public:
  explicit Barriers(sys::Cuda& cuda) : cuda_(cuda) {}
  Status load(KernelCache& kernels);
  /// Before the first of them; the team's memory and the signal pad outlive it.
  void set(const nvlink::Team& team, const nvlink::SignalPad& pad);

  /// All ranks meet. `signature` tells calls apart; a peer with another one is a fault.
  Status all(sys::Stream stream, int channel, uint64_t signature);
  /// The same with a signature for every peer: what this rank and that one have to do with each
  /// other.
  Status of_pairs(sys::Stream stream, int channel, const nvlink::PairSignatures& meant);
  /// This rank meets each of the ranks in `with`, a bit per rank, and no other: both ranks of a
  /// pair meet each other equally often.
  Status pairs(sys::Stream stream, uint32_t with);
  /// Short blocks to and from peers, after the barrier on `channel` that opened the call.
  Status exchange_short(sys::Stream stream, int channel, const nvlink::ShortBlocks& blocks);
  /// Half a barrier, on a channel that sees no whole ones: `teller` passes at once, the others when
  /// it has come as far as they. All ranks take the same steps in the same order.
  Status step(sys::Stream stream, int channel, int teller);

 private:
  Status meet(sys::Stream stream, int channel, const nvlink::BarrierMask& mask);

  sys::Cuda& cuda_;
  nvlink::Team team_{};
  nvlink::SignalPad signal_pad_{};
  sys::Kernel all_{}, of_pairs_{}, pairs_{}, short_{};
};

}  // namespace braid::comm
