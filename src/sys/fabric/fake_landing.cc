// FakeFabric: what lands when a target polls, and where.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sys/fabric/fake.h"
#include "sys/fabric/fake_ports.h"

namespace braid::sys {

namespace {

bool is_allowed(Access has, Access needs) {
  return (static_cast<uint8_t>(has) & static_cast<uint8_t>(needs)) != 0;
}

}  // namespace

size_t FakeFabric::poll(Port& port, std::span<FabricEvent> events) {
  const std::lock_guard lock(mutex_);
  flush(port);
  ++port.num_polls;
  if (port.site->is_stalled) return 0;
  const uint64_t writes = 1 + random(port, rules_.max_writes_per_poll);
  for (uint64_t i = 0; i < writes && land_one(port); ++i) continue;
  size_t n = 0;
  for (; n < events.size() && !port.events.empty(); ++n) {
    events[n] = port.events.front();
    port.events.pop_front();
  }
  port.events.insert(port.events.end(), port.repeated.begin(), port.repeated.end());
  port.repeated.clear();
  return n;
}

bool FakeFabric::may_land(const Flight& flight, const Port& to) const {
  const Port& from = *ports_[flight.from];
  if (flight.not_before > to.num_polls || is_cut(*from.site, *to.site)) return false;
  if (flight.arrives_at_ns > 0 && flight.arrives_at_ns > rules_.now_ns()) return false;
  // A zombie has left its sender's stall behind.
  if (from.site->is_stalled && !flight.is_zombie) return false;
  if (rules_.has_trusted_immediates && !to.peers.contains(flight.from)) return false;
  return flight.kind != Flight::Kind::kMessage || !to.receives.empty();
}

// One of the first `reorder_window` operations that may land now, any of them.
bool FakeFabric::land_one(Port& to) {
  std::vector<size_t> ready;
  for (size_t i = 0; i < to.incoming.size() && ready.size() < rules_.reorder_window; ++i)
    if (may_land(to.incoming[i], to)) ready.push_back(i);
  if (ready.empty()) return false;
  const size_t chosen = ready[random(to, ready.size())];
  Flight flight = std::move(to.incoming[chosen]);
  to.incoming.erase(to.incoming.begin() + static_cast<std::ptrdiff_t>(chosen));
  land(to, flight);
  return true;
}

void FakeFabric::land(Port& to, Flight& flight) {
  if (flight.is_announcement_only) return announce(to, flight);
  if (flight.kind == Flight::Kind::kMessage) return land_message(to, flight);
  if (!flight.is_zombie && resolve(to, flight) == nullptr) {
    ++num_refused_;
    return lose(flight, static_cast<int>(FakeError::kRefused));
  }
  const FabricTransfer& t = flight.transfer;
  if (flight.kind == Flight::Kind::kRead) {
    if (t.bytes > 0) std::memcpy(t.local, resolve(to, flight), t.bytes);
    return complete(flight);
  }
  land_write(to, flight);
}

// Where in `to`'s memory the flight may read or write; null: nowhere.
std::byte* FakeFabric::resolve(const Port& to, const Flight& flight) const {
  const FabricTransfer& t = flight.transfer;
  const auto& regions = to.domain->by_key_;
  const auto found = regions.find(t.remote_key);
  if (found == regions.end() || !is_allowed(found->second.access, Access::kRemoteTarget))
    return nullptr;
  const Region& region = found->second;
  const auto base = reinterpret_cast<uint64_t>(region.memory);
  const bool is_inside = t.remote_address >= base && t.bytes <= region.bytes &&
                         t.remote_address - base <= region.bytes - t.bytes;
  return is_inside ? reinterpret_cast<std::byte*>(t.remote_address) : nullptr;
}

void FakeFabric::land_write(Port& to, Flight& flight) {
  const FabricTransfer& t = flight.transfer;
  std::byte* target = flight.is_zombie ? flight.zombie_target : resolve(to, flight);
  const std::byte* source = flight.is_zombie ? flight.zombie_bytes.data() : t.local;
  if (t.bytes > 0) std::memcpy(target, source, t.bytes);
  ++num_landed_;
  complete(flight);
  if (!t.immediate) return;
  announce(to, flight);
  if (random(to, 100) >= rules_.duplicate_percent) return;
  Flight again;
  again.from = flight.from;
  again.to = flight.to;
  again.transfer = t;
  again.is_announcement_only = true;
  again.not_before = to.num_polls + random(to, 50);
  to.incoming.push_back(std::move(again));
}

void FakeFabric::announce(Port& to, const Flight& flight) {
  FabricEvent event = fake_event(FabricEvent::Kind::kArrived, nullptr);
  event.immediate = *flight.transfer.immediate;
  to.events.push_back(event);
}

// As in libfabric: a message that is too long is the receiver's failure.
void FakeFabric::land_message(Port& to, const Flight& flight) {
  const Port::Receive receive = to.receives.front();
  to.receives.pop_front();
  const size_t bytes = flight.transfer.bytes;
  complete(flight);
  if (bytes > receive.message.bytes)
    return to.events.push_back(fake_failure(receive.op, FakeError::kTooLong));
  if (bytes > 0) std::memcpy(receive.message.memory, flight.transfer.local, bytes);
  FabricEvent event = fake_event(FabricEvent::Kind::kReceived, receive.op);
  event.bytes = static_cast<uint32_t>(bytes);
  to.events.push_back(event);
}

}  // namespace braid::sys
