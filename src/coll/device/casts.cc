#include "coll/device/casts.h"

#include <algorithm>

#include "coll/device/sums.h"
#include "coll/reduce/casts.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> casts_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

Status cast(comm::Device& device, sys::Stream stream, std::span<const ArrayCast> arrays,
            uint64_t count, const char* name) {
  constexpr uint64_t kElementsPerBlock = 16'384;  // of fewer a block's launch is most of its work
  if (name == nullptr || arrays.size() > kMostReduceArrays)
    return internal_error("a cast of {} arrays", arrays.size());
  if (arrays.empty() || count == 0) return {};
  ReduceArgs args{};
  for (const ArrayCast& each : arrays) {
    args.srcs[args.num_srcs++] = sys::pointer_to<void>(each.from);
    args.dsts[args.num_dsts++] = sys::pointer_to<void>(each.to);
  }
  args.count_elements = count;
  const auto blocks = static_cast<uint32_t>(
      std::clamp<uint64_t>(count / kElementsPerBlock, 1, last_sum_blocks(device)));
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel,
                         device.kernels().find(kernels::casts_fatbin(), name));
  return sys::launch(device.cuda(), kernel, {blocks, kReduceThreads, 0}, stream, args);
}

}  // namespace

Status widen(comm::Device& device, sys::Stream stream, std::span<const ArrayCast> arrays,
             uint64_t count, Dtype dtype) {
  return cast(device, stream, arrays, count, widen_kernel_name(dtype));
}

Status narrow(comm::Device& device, sys::Stream stream, std::span<const ArrayCast> arrays,
              uint64_t count, Dtype dtype) {
  return cast(device, stream, arrays, count, narrow_kernel_name(dtype));
}

Status load_casts(comm::Device& device) {
  for (const Dtype dtype : kAllDtypes) {
    if (!is_smaller_float(dtype)) continue;
    for (const char* const name : {widen_kernel_name(dtype), narrow_kernel_name(dtype)})
      BRAID_RETURN_IF_ERROR(device.kernels().find(kernels::casts_fatbin(), name).status());
  }
  return {};
}

}  // namespace braid::coll::device
