#include "comm/device/barriers.h"

#include "sys/cuda/launch.h"
#include "transport/nvlink/fatbins.h"

namespace braid::comm {

Status Barriers::load(KernelCache& kernels) {
  BRAID_ASSIGN_OR_RETURN(all_, kernels.find(kernels::barrier_fatbin(), "braid_barrier"));
  BRAID_ASSIGN_OR_RETURN(of_pairs_,
                         kernels.find(kernels::barrier_fatbin(), "braid_barrier_of_pairs"));
  BRAID_ASSIGN_OR_RETURN(pairs_, kernels.find(kernels::barrier_fatbin(), "braid_meet_pairs"));
  BRAID_ASSIGN_OR_RETURN(short_,
                         kernels.find(kernels::short_blocks_fatbin(), "braid_short_blocks"));
  return {};
}

void Barriers::set(const nvlink::Team& team, const nvlink::SignalPad& pad) {
  team_ = team;
  signal_pad_ = pad;
}

Status Barriers::all(sys::Stream stream, int channel, uint64_t signature) {
  const uint32_t everyone = (1U << team_.size) - 1;
  return meet(stream, channel, {signature, everyone, everyone});
}

Status Barriers::of_pairs(sys::Stream stream, int channel, const nvlink::PairSignatures& meant) {
  return sys::launch(cuda_, of_pairs_, {1, 32, 0}, stream, team_, signal_pad_,
                     static_cast<int32_t>(channel), meant);
}

Status Barriers::pairs(sys::Stream stream, uint32_t with) {
  return sys::launch(cuda_, pairs_, {1, 32, 0}, stream, team_, signal_pad_, with);
}

Status Barriers::exchange_short(sys::Stream stream, int channel,
                                const nvlink::ShortBlocks& blocks) {
  if (blocks.num_blocks == 0) return {};
  const auto num_blocks = static_cast<uint32_t>(blocks.num_blocks * blocks.num_parts);
  return sys::launch(cuda_, short_, {num_blocks, nvlink::kShortThreads, 0}, stream, team_,
                     signal_pad_, static_cast<int32_t>(channel), blocks);
}

Status Barriers::step(sys::Stream stream, int channel, int teller) {
  const uint32_t everyone = (1U << team_.size) - 1;
  return team_.rank == teller ? meet(stream, channel, {0, everyone, 0})
                              : meet(stream, channel, {0, 0, 1U << teller});
}

Status Barriers::meet(sys::Stream stream, int channel, const nvlink::BarrierMask& mask) {
  return sys::launch(cuda_, all_, {1, 32, 0}, stream, team_, signal_pad_,
                     static_cast<int32_t>(channel), mask);
}

}  // namespace braid::comm
