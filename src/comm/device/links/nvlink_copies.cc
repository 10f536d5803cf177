#include "comm/device/links/nvlink_copies.h"

#include <algorithm>
#include <array>

#include "base/units.h"
#include "sys/cuda/launch.h"
#include "transport/nvlink/fatbins.h"
#include "transport/nvlink/team.h"

namespace braid::comm {

Status NvlinkCopies::prepare(const Config& config, KernelCache& kernels) {
  constexpr std::string_view kPrefix = "nvlink:";
  const std::string text = config.text("BRAID_LINK_CAP");
  if (text.empty()) return {};
  if (!text.starts_with(kPrefix))
    return invalid_argument("BRAID_LINK_CAP: asked for nvlink:RATE, found '{}'", text);
  const Result<double> rate = parse_rate_gbps(text.substr(kPrefix.size()));
  if (!rate.ok()) return invalid_argument("BRAID_LINK_CAP: {}", rate.status().message());
  cap_gbps_ = rate.value();
  if (cap_gbps_ <= 0)
    return invalid_argument("BRAID_LINK_CAP: asked for a rate above 0, found '{}'", text);
  BRAID_ASSIGN_OR_RETURN(hold_kernel_, kernels.find(kernels::hold_fatbin(), "braid_hold"));
  return {};
}

Status NvlinkCopies::copy(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                          uint64_t bytes) {
  return bytes == 0 || to == from ? Status() : cuda_.copy_on_device(to, from, bytes, stream);
}

Status NvlinkCopies::push(sys::Stream stream, std::span<const sys::DeviceCopy> copies) {
  for (const sys::DeviceCopy& copy : copies)
    if (copy.to != copy.from) call_watch_.sends(CallWatch::kNvlink, copy.bytes);
  if (cap_gbps_ > 0) return push_held(stream, copies);
  std::array<sys::DeviceCopy, nvlink::kMostRanks> some;
  size_t num_copies = 0;
  for (const sys::DeviceCopy& copy : copies)
    if (copy.bytes > 0 && copy.to != copy.from) some[num_copies++] = copy;
  return num_copies == 0 ? Status() : cuda_.copy_batch({some.data(), num_copies}, stream);
}

// Piece by piece to each in turn, so that all of them see the rate all the time.
Status NvlinkCopies::push_held(sys::Stream stream, std::span<const sys::DeviceCopy> copies) {
  // Far more than a copy and its hold cost to begin, which is 25 us together.
  constexpr uint64_t kHeldBytes = 16 << 20;
  BRAID_RETURN_IF_ERROR(hold(stream, 0));
  bool is_done = false;
  for (uint64_t at = 0; !is_done; at += kHeldBytes) {
    is_done = true;
    for (const sys::DeviceCopy& whole : copies) {
      if (whole.bytes <= at) continue;
      const uint64_t bytes = std::min(kHeldBytes, whole.bytes - at);
      BRAID_RETURN_IF_ERROR(copy(stream, whole.to + at, whole.from + at, bytes));
      BRAID_RETURN_IF_ERROR(hold(stream, bytes));
      is_done = is_done && whole.bytes <= at + kHeldBytes;
    }
  }
  return {};
}

Status NvlinkCopies::hold(sys::Stream stream, uint64_t bytes) {
  const auto cost_ns = static_cast<uint64_t>(static_cast<double>(bytes) / cap_gbps_);
  return sys::launch(cuda_, hold_kernel_, {1, 1, 0}, stream, held_until_ns_, cost_ns);
}

}  // namespace braid::comm
