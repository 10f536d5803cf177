#include "coll/device/sums.h"

#include <algorithm>

#include "coll/reduce/reduce_names.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> reduce_whole_fatbin();
std::span<const std::byte> reduce_floats_fatbin();
std::span<const std::byte> reduce_rest_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

/// Where the entries of a dtype are: reduce_*.cu.
std::span<const std::byte> reduce_fatbin(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kFloat32: return kernels::reduce_floats_fatbin();
    case Dtype::kFloat64:
    case Dtype::kFloat8E4m3:
    case Dtype::kFloat8E5m2: return kernels::reduce_rest_fatbin();
    default: return kernels::reduce_whole_fatbin();
  }
}

// The widest ring that a block can have: up to 4 vectors a stage, beyond which nothing was gained.
uint32_t sum_shared_bytes(const comm::Device& device, int num_srcs) {
  constexpr int kWidest = 4;
  for (int width = kWidest; width > 0; --width)
    if (ring_bytes(width, num_srcs, kReduceThreads) <= device.gpus().most_shared_bytes)
      return ring_bytes(width, num_srcs, kReduceThreads);
  return 0;
}

}  // namespace

ReduceArgs one_destination(const std::array<sys::DevicePtr, nvlink::kMostRanks>& addresses,
                           int num_srcs, sys::DevicePtr dst, uint64_t count_elements) {
  ReduceArgs args{};
  for (int r = 0; r < num_srcs; ++r)
    args.srcs[r] = sys::pointer_to<void>(addresses[static_cast<size_t>(r)]);
  args.dsts[0] = sys::pointer_to<void>(dst);
  args.count_elements = count_elements;
  args.num_srcs = num_srcs;
  args.num_dsts = 1;
  return args;
}

uint64_t sum_blocks(const comm::Device& device, uint64_t bytes, uint64_t lasting) {
  // An all-reduce of 128 MiB on 2 H200: 430 us with 16 blocks, 388 with 24, 381 with 48; of 192 MiB
  // 556 with any.
  constexpr uint64_t kShortBytes = 160 << 20;
  constexpr uint64_t kShortBlocks = 64;
  if (device.gpus().sum_blocks != 0) return device.gpus().sum_blocks;
  return bytes <= kShortBytes ? kShortBlocks : lasting;
}

uint64_t last_sum_blocks(const comm::Device& device) {
  constexpr uint64_t kLastBlocks = 128;
  return device.gpus().sum_blocks != 0 ? device.gpus().sum_blocks : kLastBlocks;
}

// What a kernel may have is said once, so it is said for all numbers of operands: every ring is a
// multiple of the narrowest one.
Result<sys::Kernel> sum_kernel(comm::Device& device, const SumKind& kind) {
  constexpr uint32_t kNarrowest = ring_bytes(1, 1, kReduceThreads);
  return device.kernels().find(reduce_fatbin(kind.dtype), reduce_kernel_name(kind.dtype, kind.op),
                               device.gpus().most_shared_bytes / kNarrowest * kNarrowest);
}

Status sum(comm::Device& device, sys::Stream stream, const ReduceArgs& args, const SumKind& kind) {
  if (args.count_elements == 0) return {};
  constexpr uint64_t kBytesPerBlock = uint64_t{64}
                                      << 10;  // below it a block has less work than its launch
  const uint64_t bytes = args.count_elements * dtype_bytes(kind.dtype);
  const auto blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>(bytes / kBytesPerBlock, 1, kind.most_blocks));
  const uint32_t shared_bytes = sum_shared_bytes(device, args.num_srcs);
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel, sum_kernel(device, kind));
  return sys::launch(device.cuda(), kernel, {blocks, kReduceThreads, shared_bytes}, stream, args);
}

}  // namespace braid::coll::device
