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
  constexpr uint64_t kShortBytes = 128 << 20;
  constexpr uint64_t kShortBlocks = 64;
  if (device.sum_blocks() != 0) return device.sum_blocks();
  return bytes < kShortBytes ? kShortBlocks : lasting;
}

Status sum(comm::Device& device, sys::Stream stream, const ReduceArgs& args, const SumKind& kind) {
  if (args.count_elements == 0) return {};
  constexpr uint64_t kBytesPerBlock = 64 * 1024;  // below it a block has less work than its launch
  const uint64_t bytes = args.count_elements * dtype_bytes(kind.dtype);
  const auto blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>(bytes / kBytesPerBlock, 1, kind.most_blocks));
  BRAID_ASSIGN_OR_RETURN(
      const sys::Kernel kernel,
      device.kernel(reduce_fatbin(kind.dtype), reduce_kernel_name(kind.dtype, kind.op)));
  return sys::launch(device.cuda(), kernel, {blocks, kReduceThreads, 0}, stream, args);
}

}  // namespace braid::coll::device
