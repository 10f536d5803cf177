#include "engine/rail.h"

#include <algorithm>
#include <array>
#include <limits>

#include "engine/cores.h"

namespace braid::engine {
namespace {
constexpr int64_t kFirstPauseNs = 100'000'000;
constexpr int64_t kLongestPauseNs = 10'000'000'000;
// How many bytes a rail may have under way: as many as it moves in this time, within bounds. Fewer
// starve it between two polls; more let a slow rail hold up the end of a transfer.
constexpr double kWorthNs = 20e6;
constexpr uint64_t kLeastRoomBytes = 1 << 20;
constexpr uint64_t kMostRoomBytes = 8 << 20;
constexpr uint64_t kFirstRoomBytes = 2 << 20;  // before a rate is known
constexpr int64_t kNudgeNs = 200'000;          // since something of a read has completed
constexpr size_t kMostNudges = 32;
// Some providers tell of one completion twice. The one that is used again is the one that rested
// longest, behind so many others: a late second word must not end another piece.
constexpr size_t kRestedOps = 64;
}  // namespace

Result<std::string> Rail::call() {
  sys::EndpointRequest request;
  request.queue_depth = kMostFlights + 64;
  const WideCores wide;
  BRAID_ASSIGN_OR_RETURN(endpoint_, nic_->domain->open_endpoint(request));
  state_ = State::kCalled;
  return endpoint_->name();
}

Status Rail::connect(const RailReady& ready, int64_t now) {
  BRAID_ASSIGN_OR_RETURN(peer_, endpoint_->add_peer(ready.endpoint));
  state_ = State::kProbing;
  probe_target_ = {ready.probe_address, ready.probe_key};
  Op* op = take_op();
  op->is_probe = true;
  op->is_flying = true;
  op->posted_ns = now;
  ++num_flying_;
  probe_to_post_ = op;
  return {};
}

Result<bool> Rail::write_probe(Op* op) {
  sys::FabricTransfer probe;
  probe.peer = peer_;
  probe.local_region = nic_->probe_region;
  probe.local = nic_->probe->data();
  probe.bytes = sizeof(uint64_t);
  probe.remote_address = probe_target_.address;
  probe.remote_key = probe_target_.key;
  return endpoint_->write(probe, op);
}

// A provider that must connect first is busy until it has, and moves only while it is polled.
Status Rail::post_probe() {
  BRAID_ASSIGN_OR_RETURN(const bool is_posted, write_probe(probe_to_post_));
  if (is_posted) probe_to_post_ = nullptr;
  return {};
}

// A reader over TCP asks and waits, so its kernel keeps acknowledgements back for up to 40 ms: it
// expects to send something that carries them. A target with BBR for congestion control sends a few
// segments, on loopback, and then waits for one. Whatever we send carries it, so we send 8 bytes
// that say nothing. Pulls of 64 MiB: docs/decisions/0042-reads-that-nudge.md.
Status Rail::nudge(int64_t now) {
  if (num_reads_ == 0 || now - heard_ns_ < kNudgeNs || num_nudges_ == kMostNudges ||
      !nic_->domain->limits().delays_acknowledgements)
    return {};
  Op* op = take_op();
  op->is_nudge = true;
  Result<bool> posted = write_probe(op);
  if (posted.ok() && *posted) {
    ++num_nudges_;
    heard_ns_ = now;
    return {};
  }
  op->is_nudge = false;
  free_.push_back(op);
  return posted.ok() ? Status() : posted.status();
}

std::vector<Rail::Flight> Rail::close(State next, int64_t retry_at_ns) {
  endpoint_.reset();
  std::vector<Flight> out;
  for (const Op& op : ops_)
    if (op.is_flying && !op.is_probe) out.push_back(op.flight);
  ops_.clear();
  free_.clear();
  probe_to_post_ = nullptr;
  num_flying_ = num_reads_ = num_nudges_ = 0;
  flying_bytes_ = 0;
  busy_since_ns_ = 0;
  meter_ = {};
  state_ = next;
  retry_at_ns_ = retry_at_ns;
  return out;
}

int64_t Rail::next_pause_ns() {
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
  return pause_ns_;
}

uint64_t Rail::room_bytes() const {
  if (num_flying_ >= kMostFlights) return 0;
  uint64_t most = kFirstRoomBytes;
  if (meter_.rate() > 0)
    most = std::clamp(static_cast<uint64_t>(meter_.rate() * kWorthNs), kLeastRoomBytes,
                      kMostRoomBytes);
  return most > flying_bytes_ ? most - flying_bytes_ : 0;
}

double Rail::finish_ns(uint64_t bytes) const {
  return meter_.rate() > 0 ? static_cast<double>(flying_bytes_ + bytes) / meter_.rate() : 0;
}

Rail::Op* Rail::take_op() {
  if (free_.size() <= kRestedOps) return &ops_.emplace_back();
  Op* op = free_.front();
  free_.pop_front();
  return op;
}

Result<bool> Rail::post(const Flight& flight, bool has_more, int64_t now) {
  const Transfer& t = *flight.transfer;
  const auto own = static_cast<size_t>(pair_.source_nic);
  const TransferPlane& plane = t.planes[flight.piece.plane];
  const NicKey& key = plane.remote->keys[pair_.target_nic];
  sys::FabricTransfer out;
  out.peer = peer_;
  out.local_region = plane.local->handles[own];
  out.local = reinterpret_cast<std::byte*>(flight.piece.source_address);
  out.bytes = flight.piece.bytes;
  out.remote_address = key.address + flight.piece.target_offset;
  out.remote_key = key.key;
  out.has_more = has_more;
  Op* op = take_op();
  Result<bool> posted =
      t.kind == Transfer::Kind::kRead ? endpoint_->read(out, op) : endpoint_->write(out, op);
  if (!posted.ok() || !*posted) {
    free_.push_back(op);
    if (busy_since_ns_ == 0) busy_since_ns_ = now;
    return posted;
  }
  busy_since_ns_ = 0;
  op->flight = flight;
  op->posted_ns = now;
  op->is_flying = true;
  op->is_probe = false;
  if (num_flying_++ == 0) meter_.begin(now);
  if (t.kind == Transfer::Kind::kRead && num_reads_++ == 0) heard_ns_ = now;
  flying_bytes_ += flight.piece.bytes;
  return true;
}

void Rail::completed(Op& op, std::vector<Flight>& done, int64_t now) {
  heard_ns_ = now;
  if (op.is_nudge) {
    op.is_nudge = false;
    --num_nudges_;
    free_.push_back(&op);
    return;
  }
  op.is_flying = false;
  --num_flying_;
  if (op.is_probe) {
    op.is_probe = false;
    state_ = State::kUp;
    pause_ns_ = 0;
    why_down_.clear();
  } else {
    flying_bytes_ -= op.flight.piece.bytes;
    if (op.flight.transfer->kind == Transfer::Kind::kRead) --num_reads_;
    meter_.completed(op.flight.piece.bytes, now);
    if (num_flying_ == 0) meter_.end(now);
    done.push_back(op.flight);
  }
  free_.push_back(&op);
}

Status Rail::poll(std::vector<Flight>& done, int64_t now) {
  if (endpoint_ == nullptr) return {};
  if (probe_to_post_ != nullptr) BRAID_RETURN_IF_ERROR(post_probe());
  std::array<sys::FabricEvent, 32> events;
  while (true) {
    const size_t count = endpoint_->poll(events);
    for (size_t i = 0; i < count; ++i) {
      const sys::FabricEvent& event = events[i];
      if (event.kind == sys::FabricEvent::Kind::kFailed)
        return driver_error("{}: {}", nic_->domain->description(), endpoint_->why(event));
      if (event.kind != sys::FabricEvent::Kind::kCompleted || event.op == nullptr) continue;
      Op& op = *static_cast<Op*>(event.op);
      if (op.is_flying || op.is_nudge) completed(op, done, now);  // kRestedOps
    }
    if (count < events.size()) return nudge(now);
  }
}

// An endpoint whose other end was closed while nothing flew may say for ever that it is busy.
int64_t Rail::waits_since_ns() const {
  int64_t oldest = std::numeric_limits<int64_t>::max();
  if (num_flying_ == 0 && busy_since_ns_ != 0) oldest = busy_since_ns_;
  for (const Op& op : ops_)
    if (op.is_flying) oldest = std::min(oldest, op.posted_ns);
  return oldest;
}

}  // namespace braid::engine
