#include "comm/device/device.h"

#include <algorithm>
#include <utility>

#include "sys/cuda/launch.h"
#include "transport/pcie/local_copy.h"

namespace braid::comm {

namespace {

constexpr int kRingThreads = 512;

}  // namespace

Status Device::begin(sys::Stream user) {
  BRAID_RETURN_IF_ERROR(status());
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda_.capture_state(user));
  if (capture == sys::CaptureState::kInvalidated)
    return invalid_argument("stream {}: its capture has become invalid", user.handle);
  is_captured_ = capture != sys::CaptureState::kNone;
  has_captures_ = has_captures_ || is_captured_;
  is_settled_ = std::exchange(settles_, false) && !has_captures_;
  if (is_captured_) return follow_captured(user);
  return has_last_call_ ? cuda_.wait_event(user, last_call_) : Status();
}

// Two calls of one graph on streams that nothing joins would use the same scratch at once. Captured
// work may not wait for an event of another capture, or of none.
Status Device::follow_captured(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t id, cuda_.capture_id(user));
  const auto found = std::ranges::find(captures_, id, &Captured::id);
  if (id == 0 || found == captures_.end()) return {};
  return cuda_.wait_event(user, found->last_call);
}

// In place of the oldest, where it is new.
Status Device::note_captured(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t id, cuda_.capture_id(user));
  if (id == 0) return {};
  auto found = std::ranges::find(captures_, id, &Captured::id);
  if (found == captures_.end()) found = &captures_[next_capture_++ % captures_.size()];
  found->id = id;
  return cuda_.record(found->last_call, user);
}

Status Device::end(sys::Stream user) {
  if (balance_) {
    balance_->end_call();
    for (std::string& line : balance_->take_log()) state_.note_event(std::move(line));
  }
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda_.capture_state(user));
  if (capture != sys::CaptureState::kNone) return note_captured(user);
  has_last_call_ = true;
  return cuda_.record(last_call_, user);
}

// Through the event: the stream of the last call was the user's, who may have destroyed it since.
Status Device::finish_last_call() {
  if (!has_last_call_) return {};
  BRAID_RETURN_IF_ERROR(cuda_.wait_event(sides_[kCopies], last_call_));
  return cuda_.synchronize(sides_[kCopies]);
}

void Device::settle_calls() {
  if (!call_watch_.has_pending()) return;
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  if (scope.ok()) call_watch_.settle();
}

Result<sys::Event> Device::mark(sys::Stream stream) {
  const sys::Event event = events_[next_event_++ % events_.size()];
  BRAID_RETURN_IF_ERROR(cuda_.record(event, stream));
  return event;
}

Status Device::after(sys::Stream to, sys::Stream from) {
  BRAID_ASSIGN_OR_RETURN(const sys::Event point, mark(from));
  return wait(to, point);
}

Status Device::barrier(sys::Stream stream, int channel, uint64_t signature) {
  const uint32_t everyone = (1U << size()) - 1;
  return meet(stream, channel, {signature, everyone, everyone});
}

Status Device::barrier_of_pairs(sys::Stream stream, int channel,
                                const nvlink::PairMeeting& meeting) {
  return sys::launch(cuda_, barrier_of_pairs_kernel_, {1, 32, 0}, stream, team_, board_,
                     static_cast<int32_t>(channel), meeting);
}

Status Device::meet_pairs(sys::Stream stream, uint32_t with) {
  return sys::launch(cuda_, pairs_kernel_, {1, 32, 0}, stream, team_, board_, with);
}

Status Device::exchange_short(sys::Stream stream, int channel, const nvlink::ShortBlocks& blocks) {
  if (blocks.num_blocks == 0) return {};
  const auto num_blocks = static_cast<uint32_t>(blocks.num_blocks * blocks.num_parts);
  return sys::launch(cuda_, short_kernel_, {num_blocks, nvlink::kShortThreads, 0}, stream, team_,
                     board_, static_cast<int32_t>(channel), blocks);
}

Status Device::step(sys::Stream stream, int channel, int teller) {
  const uint32_t everyone = (1U << size()) - 1;
  return rank() == teller ? meet(stream, channel, {0, everyone, 0})
                          : meet(stream, channel, {0, 0, 1U << teller});
}

Status Device::meet(sys::Stream stream, int channel, const nvlink::Meeting& meeting) {
  return sys::launch(cuda_, barrier_kernel_, {1, 32, 0}, stream, team_, board_,
                     static_cast<int32_t>(channel), meeting);
}

void Device::count_sent(CallWatch::Link link, const pcie::Flows& flows) {
  for (int i = 0; i < flows.num_flows; ++i)
    if (flows.flow[i].source != nullptr) call_watch_.sends(link, flows.flow[i].bytes);
}

Status Device::send_over_host(sys::Stream stream, const pcie::Flows& flows) {
  count_sent(CallWatch::kPcie, flows);
  return run_ring(stream, ring_, flows);
}

Status Device::send_over_host_beside_sums(sys::Stream stream, const pcie::Flows& flows) {
  count_sent(CallWatch::kPcie, flows);
  pcie::Flows narrow = flows;
  narrow.num_lanes = ring_engine_.lanes_beside_sums(flows.num_flows);
  pcie::HostRing ring = ring_;
  if (ring.num_slots >= 4 && ring.num_slots % 2 == 0) {
    ring.num_slots /= 2;
    if (ring.slot_bytes < kSlotBytes) ring.slot_bytes *= 2;
  }
  return run_ring(stream, ring, narrow);
}

Status Device::send_over_rdma(sys::Stream stream, const pcie::Flows& flows) {
  count_sent(CallWatch::kNic, flows);
  pcie::Flows watched = flows;
  watched.num_lanes = host_lanes(size());  // the proxy looks at no others
  return run_ring(stream, rdma_->ring(), watched);
}

Status Device::run_ring(sys::Stream stream, const pcie::HostRing& ring, const pcie::Flows& flows) {
  if (flows.num_flows == 0) return {};
  if (flows.num_lanes > ring.num_lanes)
    return internal_error("gpu host ring: {} lanes, {} have slots", flows.num_lanes,
                          ring.num_lanes);
  const auto num_blocks = static_cast<uint32_t>(flows.num_flows * flows.num_lanes);
  if (ring_engine_.has_bulk && are_whole_vectors(flows)) {
    pcie::Flows windowed = flows;
    windowed.open_tiles = static_cast<int32_t>(ring_engine_.open_tiles_of(ring, flows));
    return sys::launch(cuda_, bulk_ring_kernel_,
                       {num_blocks, pcie::kBulkThreads, pcie::kBulkSharedBytes}, stream, team_,
                       ring, windowed);
  }
  return sys::launch(cuda_, ring_kernel_, {num_blocks, kRingThreads, 0}, stream, team_, ring,
                     flows);
}

Status Device::copy(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes) {
  return bytes == 0 || to == from ? Status() : cuda_.copy_on_device(to, from, bytes, stream);
}

Status Device::copy_beside_ring(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                                uint64_t bytes) {
  // A block copies 46 GB/s. Ten are done with a rank's own block when NVLink is done with the
  // other's; among more ranks there is more time.
  const uint32_t num_blocks = size() == 2 ? 10 : 6;
  if (!ring_engine_.has_bulk || to % 16 != 0 || from % 16 != 0 || to == from)
    return copy(stream, to, from, bytes);
  return sys::launch(cuda_, local_copy_kernel_,
                     {num_blocks, pcie::kLocalThreads, pcie::kLocalSharedBytes}, stream,
                     sys::pointer_to<std::byte>(to), sys::pointer_to<const std::byte>(from), bytes);
}

Status Device::push(sys::Stream stream, std::span<const sys::DeviceCopy> copies) {
  for (const sys::DeviceCopy& copy : copies)
    if (copy.to != copy.from) call_watch_.sends(CallWatch::kNvlink, copy.bytes);
  if (link_cap_gbps_ > 0) return push_held(stream, copies);
  std::array<sys::DeviceCopy, nvlink::kMostRanks> some;
  size_t num_copies = 0;
  for (const sys::DeviceCopy& copy : copies)
    if (copy.bytes > 0 && copy.to != copy.from) some[num_copies++] = copy;
  return num_copies == 0 ? Status() : cuda_.copy_batch({some.data(), num_copies}, stream);
}

// Piece by piece to each in turn, so that all of them see the rate all the time.
Status Device::push_held(sys::Stream stream, std::span<const sys::DeviceCopy> copies) {
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

Status Device::hold(sys::Stream stream, uint64_t bytes) {
  const auto cost_ns = static_cast<uint64_t>(static_cast<double>(bytes) / link_cap_gbps_);
  return sys::launch(cuda_, hold_kernel_, {1, 1, 0}, stream,
                     local_at(offsetof(LocalMemory, held_until_ns)), cost_ns);
}

// ---- stage 2 ----

Status Device::start_balance(Deadline deadline) {
  if (size() == 1) return {};
  BRAID_ASSIGN_OR_RETURN(
      balance_, HostBalance::create(*state_.group, state_.config, cuda_, shares_, deadline));
  return {};
}

Status Device::count_call(BalancedCall call) {
  call.is_captured = is_captured_;
  return balance_ ? balance_->begin_call(call) : Status();
}

std::optional<HostBalance::Summary> Device::balance_summary() const {
  if (!balance_) return std::nullopt;
  return balance_->summary();
}

}  // namespace braid::comm
