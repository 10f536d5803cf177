// FakeFabric: operations leave, meet faults, and are told. fake_landing.cc has the rest of their way.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sys/fabric/fake.h"
#include "sys/fabric/fake_ports.h"

namespace braid::sys {

namespace {
// A zombie sleeps for so many polls of its target: long enough for any renewal to have happened
// meanwhile.
constexpr uint64_t kZombiePolls = 2000;

}  // namespace

// --- Operations --------------------------------------------------------------------------------

Result<bool> FakeEndpoint::write(const FabricTransfer& transfer, FabricOp* op) {
  FakeFabric::Flight flight;
  flight.transfer = transfer;
  flight.op = op;
  return fabric_.post(port_, std::move(flight), transfer.has_more);
}

Result<bool> FakeEndpoint::read(const FabricTransfer& transfer, FabricOp* op) {
  if (!fabric_.rules_.can_read) return unsupported("fake fabric: reads are not possible");
  FakeFabric::Flight flight;
  flight.kind = FakeFabric::Flight::Kind::kRead;
  flight.transfer = transfer;
  flight.transfer.wants_delivery = true;
  flight.op = op;
  return fabric_.post(port_, std::move(flight), transfer.has_more);
}

Result<bool> FakeEndpoint::send(const FabricMessage& message, FabricOp* op) {
  FakeFabric::Flight flight;
  flight.kind = FakeFabric::Flight::Kind::kMessage;
  flight.transfer.peer = message.peer;
  flight.transfer.local = message.memory;
  flight.transfer.bytes = message.bytes;
  flight.op = op;
  return fabric_.post(port_, std::move(flight), false);
}

Result<bool> FakeEndpoint::receive(const FabricMessage& message, FabricOp* op) {
  const std::lock_guard lock(fabric_.mutex_);
  port_.receives.push_back({message, op});
  return true;
}

size_t FakeEndpoint::poll(std::span<FabricEvent> events) { return fabric_.poll(port_, events); }

std::string FakeEndpoint::why(const FabricEvent& failed) const {
  switch (static_cast<FakeError>(failed.provider_error)) {
    case FakeError::kReset: return "injected reset";
    case FakeError::kInjected: return "injected failure";
    case FakeError::kRefused: return "the target refused it";
    case FakeError::kLost: return "it was lost";
    case FakeError::kClosed: return "the peer's endpoint was closed";
    case FakeError::kTooLong: return "the message is longer than the memory offered for it";
  }
  return "unknown";
}

// --- Leaving -----------------------------------------------------------------------------------

uint64_t FakeFabric::random(Port& port, uint64_t below) {
  return below == 0 ? 0 : port.rng() % below;
}

bool FakeFabric::is_cut(const Site& a, const Site& b) const {
  return std::any_of(cuts_.begin(), cuts_.end(), [&](const auto& c) {
    return (c.first == &a && c.second == &b) || (c.first == &b && c.second == &a);
  });
}

Result<bool> FakeFabric::post(Port& from, Flight flight, bool has_more) {
  const std::lock_guard lock(mutex_);
  if (random(from, 100) < rules_.busy_percent) return false;
  const Port& to = *ports_[flight.transfer.peer];
  if (!to.is_open) return driver_error("fake fabric: {} is closed", to.site->address);
  flight.from = from.number;
  flight.to = to.number;
  from.held.push_back(std::move(flight));
  if (!has_more) flush(from);
  return true;
}

void FakeFabric::flush(Port& from) {
  for (Flight& flight : std::exchange(from.held, {})) depart(from, std::move(flight));
}

void FakeFabric::depart(Port& from, Flight flight) {
  Port& to = *ports_[flight.to];
  if (!to.is_open) return fail(flight, static_cast<int>(FakeError::kClosed));
  flight.not_before = to.num_polls + random(from, rules_.max_delay_polls + 1);
  Site& sender = flight.kind == Flight::Kind::kRead ? *to.site : *from.site;
  if (sender.rate_gbps > 0) {
    const int64_t begins = std::max(rules_.now_ns(), sender.wire_free_at_ns);
    const double takes_ns = static_cast<double>(flight.transfer.bytes) / sender.rate_gbps;
    flight.arrives_at_ns = sender.wire_free_at_ns = begins + static_cast<int64_t>(takes_ns);
  }
  const auto fault = from.site->faults.find(from.domain->num_posted_++);
  if (fault != from.site->faults.end()) return meet_fault(from, std::move(flight), fault->second);
  if (!flight.transfer.wants_delivery) {
    complete(flight);
    flight.op = nullptr;
  }
  to.incoming.push_back(std::move(flight));
}

void FakeFabric::meet_fault(Port& from, Flight flight, FakeFault fault) {
  Port& to = *ports_[flight.to];
  if (fault == FakeFault::kDrop) return lose(flight, static_cast<int>(FakeError::kLost));
  if (fault == FakeFault::kFail) return fail(flight, static_cast<int>(FakeError::kInjected));
  if (fault == FakeFault::kMute) flight.op = nullptr;
  if (fault == FakeFault::kRepeat) flight.completes_twice = true;
  to.incoming.push_back(std::move(flight));
  if (fault != FakeFault::kReset && fault != FakeFault::kZombie) return;
  reset(from, to, fault == FakeFault::kZombie);
  reset(to, from, fault == FakeFault::kZombie);
}

// Everything on its way from `a` to `b` fails.
void FakeFabric::reset(Port& a, Port& b, bool as_zombies) {
  std::deque<Flight> kept;
  for (Flight& f : b.incoming) {
    if (f.from != a.number || f.is_zombie || f.is_announcement_only) {
      kept.push_back(std::move(f));
      continue;
    }
    fail(f, static_cast<int>(FakeError::kReset));
    f.op = nullptr;
    f.zombie_target = as_zombies && f.kind == Flight::Kind::kWrite ? resolve(b, f) : nullptr;
    if (f.zombie_target == nullptr) continue;
    f.is_zombie = true;
    f.zombie_bytes.assign(f.transfer.local, f.transfer.local + f.transfer.bytes);
    f.not_before = b.num_polls + kZombiePolls + random(b, kZombiePolls);
    kept.push_back(std::move(f));
  }
  b.incoming = std::move(kept);
}

void FakeFabric::complete(const Flight& flight) {
  Port& from = *ports_[flight.from];
  if (flight.op == nullptr || !from.is_open) return;
  const bool is_repeated = flight.completes_twice ||
                           (rules_.repeat_percent > 0 && random(from, 100) < rules_.repeat_percent);
  from.events.push_back(fake_event(FabricEvent::Kind::kCompleted, flight.op));
  if (is_repeated) from.repeated.push_back(from.events.back());
}

void FakeFabric::fail(const Flight& flight, int provider_error) {
  Port& from = *ports_[flight.from];
  if (flight.op == nullptr || !from.is_open) return;
  from.events.push_back(fake_failure(flight.op, static_cast<FakeError>(provider_error)));
}

// What a sender hears of that which did not land. A read cannot lie: nothing has come.
void FakeFabric::lose(const Flight& flight, int provider_error) {
  const bool may_lie = !rules_.is_truthful && flight.kind != Flight::Kind::kRead;
  if (may_lie) return complete(flight);
  if (!rules_.is_truthful || rules_.lost_fails) fail(flight, provider_error);
}

// Nothing that is on its way to it lands any more, and nobody will hear of what it had on the way,
// whose source is about to go; zombies from it are copies, and on their way to others.
void FakeFabric::close(Port& port) {
  port.is_open = false;
  --num_open_;
  if (rules_.is_truthful && rules_.lost_fails)
    for (const Flight& f : port.incoming) fail(f, static_cast<int>(FakeError::kClosed));
  port.incoming.clear();
  port.held.clear();
  port.events.clear();
  port.repeated.clear();
  port.receives.clear();
  for (const auto& other : ports_)
    std::erase_if(other->incoming,
                  [&](const Flight& f) { return f.from == port.number && !f.is_zombie; });
}

}  // namespace braid::sys
