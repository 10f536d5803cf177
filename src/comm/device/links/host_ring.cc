#include "comm/device/links/host_ring.h"

#include <fmt/format.h>

#include "comm/device/shares/tuned_share.h"
#include "fabric/merge.h"
#include "group/agree.h"

namespace braid::comm {

fabric::Link HostRingLink::facts() const {
  for (const fabric::Link& link : fabric::gpu_links(ground_.state.fabric))
    if (link.kind == fabric::LinkKind::kPcie) return link;
  fabric::Link unknown;
  unknown.name = "pcie";
  unknown.kind = fabric::LinkKind::kPcie;
  unknown.can_multicast = true;
  return unknown;
}

Status HostRingLink::prepare() {
  BRAID_RETURN_IF_ERROR(read_slots(ground_.state.config, ground_.state.size(), ring_));
  BRAID_RETURN_IF_ERROR(kernels_.prepare(ground_));
  ring_.num_lanes = kernels_.engine().lanes_of(1);
  BRAID_RETURN_IF_ERROR(make_stream());
  BRAID_ASSIGN_OR_RETURN(progress_, zeros(sizeof(pcie::RingProgress)));
  ring_.progress = sys::pointer_to<pcie::RingProgress>(progress_.get());
  return {};
}

// Where lanes were asked for, blocks decide nothing: some ranks may move them by bulk copies and
// others not.
std::string HostRingLink::shape() const {
  const RingEngine& engine = kernels_.engine();
  return fmt::format("{}x{},lanes:{}:{}", ring_.num_slots, ring_.slot_bytes,
                     engine.asked_lanes != 0 ? 0 : engine.num_blocks, engine.asked_lanes);
}

Status HostRingLink::connect(const std::string& shape, Deadline deadline) {
  transport::SegmentRequest request;
  request.topic = "gpu host ring";
  request.bytes =
      pcie::segment_bytes(ground_.state.size(), ring_.slot_bytes, ring_.num_slots, ring_.num_lanes);
  request.shape = shape;
  request.host_id = ground_.state.config.text("BRAID_HOST_ID");
  BRAID_ASSIGN_OR_RETURN(segments_,
                         transport::share_segments(*ground_.state.group, request, deadline));
  const Status own = pin(request.bytes);
  // All ranks or none: whoever could not pin says so before anyone uses the ring.
  return group::agree(*ground_.state.group, "gpu host ring pinned", own, "", deadline)
      .status()
      .with_context("gpu host ring");
}

Status HostRingLink::pin(uint64_t bytes) {
  for (int r = 0; r < ground_.state.size(); ++r) {
    std::byte* const segment = segments_->of(r);
    BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr on_device,
                           ground_.cuda.register_host(segment, bytes));
    pinned_.emplace_back(ground_.cuda, segment);
    ring_.segment[r] = sys::pointer_to<std::byte>(on_device);
  }
  return {};
}

Status HostRingLink::start(const DeviceLink& base, Deadline deadline) {
  if (ground_.state.size() == 1) return {};
  BRAID_ASSIGN_OR_RETURN(
      auto balance, ShareBalance::create(*ground_.state.group, ground_.state.config, ground_.cuda,
                                         {shares(), base.facts().name, facts().name}, deadline));
  const std::lock_guard lock(ground_.state.health_mutex);  // health_json() may be looking
  balance_ = std::move(balance);
  return {};
}

uint64_t HostRingLink::part(const PartRequest& r) const {
  return part_bytes(r.block_bytes, shares().parts(r.op, r.block_bytes), r.most_bytes, r.used);
}

// Beside sums: fewer lanes, and half as many slots, two as one where they are small. Slots may have
// another size than in the call before, since a barrier, the call's own or that of the call before,
// says that the rings are empty.
Status HostRingLink::enqueue(const LinkPart& part, sys::Stream stream) {
  constexpr uint32_t kSmallSlotBytes = 128 << 10;
  note_sent(part);
  const RingEngine& engine = kernels_.engine();
  if (!part.is_beside_sums)
    return kernels_.run(ground_, stream, ring_, part, engine.lanes_of(part.agreed_flows));
  pcie::HostRing ring = ring_;
  if (ring.num_slots >= 4 && ring.num_slots % 2 == 0) {
    ring.num_slots /= 2;
    if (ring.slot_bytes < kSmallSlotBytes) ring.slot_bytes *= 2;
  }
  return kernels_.run(ground_, stream, ring, part, engine.lanes_beside_sums(part.num_flows));
}

Status HostRingLink::copy_beside(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                                 uint64_t bytes) {
  return kernels_.can_copy(to, from) ? kernels_.copy(ground_, stream, to, from, bytes)
                                     : DeviceLink::copy_beside(stream, to, from, bytes);
}

}  // namespace braid::comm
