#include "comm/device/links/nvlink.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/units.h"
#include "fabric/merge.h"
#include "sys/cuda/launch.h"
#include "transport/nvlink/fatbins.h"

namespace braid::comm {

namespace {

/// BRAID_LINK_CAP; 0: not set.
Result<double> read_cap_gbps(const Config& config) {
  constexpr std::string_view kPrefix = "nvlink:";
  const std::string text = config.text("BRAID_LINK_CAP");
  if (text.empty()) return 0;
  if (!text.starts_with(kPrefix))
    return invalid_argument("BRAID_LINK_CAP: asked for nvlink:RATE, found '{}'", text);
  const Result<double> rate = parse_rate_gbps(text.substr(kPrefix.size()));
  if (!rate.ok()) return invalid_argument("BRAID_LINK_CAP: {}", rate.status().message());
  if (rate.value() <= 0)
    return invalid_argument("BRAID_LINK_CAP: asked for a rate above 0, found '{}'", text);
  return rate;
}

}  // namespace

fabric::Link NvlinkLink::facts() const {
  for (const fabric::Link& link : fabric::gpu_links(ground_.state.fabric))
    if (link.kind == fabric::LinkKind::kNvlink) return link;
  fabric::Link unknown;
  unknown.name = "nvlink";
  unknown.kind = fabric::LinkKind::kNvlink;
  return unknown;
}

// A stream of normal priority: what sums and moves parts beside it must not wait for its copies.
Status NvlinkLink::prepare() {
  BRAID_ASSIGN_OR_RETURN(throttle_gbps_, read_cap_gbps(ground_.state.config));
  BRAID_RETURN_IF_ERROR(make_stream(sys::StreamPriority::kNormal));
  if (throttle_gbps_ == 0) return {};
  if (ground_.state.rank() == 0)
    log::warn("comm", "NVLink is held to {} GB/s: BRAID_LINK_CAP", throttle_gbps_);
  BRAID_ASSIGN_OR_RETURN(hold_kernel_, ground_.kernels.find(kernels::hold_fatbin(), "braid_hold"));
  BRAID_ASSIGN_OR_RETURN(held_until_ns_, zeros(sizeof(uint64_t)));
  return {};
}

std::string NvlinkLink::shape() const { return fmt::format("cap:{}", throttle_gbps_); }

DeviceLinkState NvlinkLink::state() const {
  return {true, throttle_gbps_ > 0
                    ? fmt::format("held to {} GB/s by BRAID_LINK_CAP", throttle_gbps_)
                    : "straight into peers' memory"};
}

Status NvlinkLink::enqueue(const LinkPart& part, sys::Stream stream) {
  note_sent(part);
  std::array<sys::DeviceCopy, LinkPart::kMostFlows> copies;
  size_t num_copies = 0;
  for (const Flow& flow : part.all()) {
    if (flow.source == nullptr || flow.bytes == 0 || flow.source == flow.destination) continue;
    copies[num_copies++] = {sys::address_of(flow.destination), sys::address_of(flow.source),
                            flow.bytes};
  }
  if (num_copies == 0) return {};
  const std::span some(copies.data(), num_copies);
  return throttle_gbps_ > 0 ? copy_throttled(some, stream) : ground_.cuda.copy_batch(some, stream);
}

// Piece by piece to each in turn, so that all of them see the rate all the time.
Status NvlinkLink::copy_throttled(std::span<const sys::DeviceCopy> copies, sys::Stream stream) {
  // Far more than a copy and its hold cost to begin, which is 25 us together.
  constexpr uint64_t kThrottledBytes = 16 << 20;
  BRAID_RETURN_IF_ERROR(hold(stream, 0));
  bool is_done = false;
  for (uint64_t at = 0; !is_done; at += kThrottledBytes) {
    is_done = true;
    for (const sys::DeviceCopy& whole : copies) {
      if (whole.bytes <= at) continue;
      const uint64_t bytes = std::min(kThrottledBytes, whole.bytes - at);
      BRAID_RETURN_IF_ERROR(copy_beside(stream, whole.to + at, whole.from + at, bytes));
      BRAID_RETURN_IF_ERROR(hold(stream, bytes));
      is_done = is_done && whole.bytes <= at + kThrottledBytes;
    }
  }
  return {};
}

Status NvlinkLink::hold(sys::Stream stream, uint64_t bytes) {
  const auto cost_ns = static_cast<uint64_t>(static_cast<double>(bytes) / throttle_gbps_);
  return sys::launch(ground_.cuda, hold_kernel_, {1, 1, 0}, stream, held_until_ns_.get(), cost_ns);
}

}  // namespace braid::comm
