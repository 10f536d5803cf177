#include "sys/fabric/fake.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

namespace braid::sys {

namespace {
// A zombie sleeps for so many polls of its target: long enough for any renewal to have happened
// meanwhile.
constexpr uint64_t kZombiePolls = 2000;
constexpr char kPrefix[] = "fake:";
}  // namespace

struct FakeFabric::Flight {
  size_t from = 0;
  size_t to = 0;
  FabricWrite write;
  FabricOp* op = nullptr;   // null: already completed
  uint64_t not_before = 0;  // poll count of the target
  bool is_announcement_only = false;
  std::byte* zombie_target = nullptr;  // resolved when it died
  std::vector<std::byte> zombie_bytes;
};

struct FakeFabric::Port {
  size_t number = 0;
  std::string address;
  bool is_open = true;
  std::mt19937_64 rng;
  uint64_t num_posted = 0;
  uint64_t num_polls = 0;
  std::deque<Flight> incoming;
  std::deque<FabricEvent> events;
  struct Region {
    std::byte* memory;
    size_t bytes;
    bool is_target;
  };
  std::map<uint64_t, Region> regions;  // by key

  std::byte* resolve(const FabricWrite& w) const {
    const auto it = regions.find(w.remote_key);
    if (it == regions.end() || !it->second.is_target) return nullptr;
    const auto base = reinterpret_cast<uint64_t>(it->second.memory);
    const bool is_inside = w.remote_address >= base && w.bytes <= it->second.bytes &&
                           w.remote_address - base <= it->second.bytes - w.bytes;
    return is_inside ? reinterpret_cast<std::byte*>(w.remote_address) : nullptr;
  }
};

namespace {

class FakeRegion : public FabricRegion {
 public:
  FakeRegion(std::byte* memory, uint64_t key) : memory_(memory), key_(key) {}
  uint64_t remote_address() const override { return reinterpret_cast<uint64_t>(memory_); }
  uint64_t key() const override { return key_; }

 private:
  std::byte* memory_;
  uint64_t key_;
};

}  // namespace

class FakeEndpoint : public FabricEndpoint {
 public:
  FakeEndpoint(FakeFabric& fabric, FakeFabric::Port& port)
      : fabric_(fabric),
        port_(port),
        name_(kPrefix + std::to_string(port.number)),
        description_("fake " + port.address) {}

  ~FakeEndpoint() override {
    const std::lock_guard lock(fabric_.mutex_);
    port_.is_open = false;
    port_.incoming.clear();
    port_.regions.clear();
    // Nobody will read what we had on the way, and its source is about to go.
    for (const auto& other : fabric_.ports_)
      std::erase_if(other->incoming, [&](const auto& f) {
        return f.from == port_.number && f.zombie_bytes.empty();
      });
  }

  const std::string& name() const override { return name_; }
  const std::string& description() const override { return description_; }

  Result<uint64_t> add_peer(std::string_view name) override {
    const std::lock_guard lock(fabric_.mutex_);
    const bool is_fake = name.starts_with(kPrefix);
    const size_t number =
        is_fake ? std::strtoull(std::string(name.substr(5)).c_str(), nullptr, 10) : SIZE_MAX;
    if (number >= fabric_.ports_.size()) return driver_error("fake fabric: no endpoint '{}'", name);
    return static_cast<uint64_t>(number);
  }

  Result<const FabricRegion*> register_memory(std::byte* memory, size_t bytes, Access access,
                                              uint64_t key) override {
    const std::lock_guard lock(fabric_.mutex_);
    if (!port_.regions
             .emplace(key, FakeFabric::Port::Region{memory, bytes, access == Access::kRemoteTarget})
             .second)
      return driver_error("fake fabric: key {} is taken", key);
    regions_.push_back(std::make_unique<FakeRegion>(memory, key));
    return regions_.back().get();
  }

  void unregister(const FabricRegion* region) override {
    const std::lock_guard lock(fabric_.mutex_);
    port_.regions.erase(region->key());
  }

  Result<bool> write(const FabricWrite& write, FabricOp* op) override {
    return fabric_.post(port_, write, op);
  }
  size_t poll(std::span<FabricEvent> events) override { return fabric_.poll(port_, events); }

 private:
  FakeFabric& fabric_;
  FakeFabric::Port& port_;
  std::string name_, description_;
  std::vector<std::unique_ptr<FakeRegion>> regions_;
};

FakeFabric::FakeFabric(const FakeRules& rules) : rules_(rules) {}
FakeFabric::~FakeFabric() = default;

Result<std::unique_ptr<FabricEndpoint>> FakeFabric::open(const EndpointRequest& request) {
  const std::lock_guard lock(mutex_);
  if (std::find(forbidden_.begin(), forbidden_.end(), request.address) != forbidden_.end())
    return unavailable("fake fabric: no interface at {}", request.address);
  auto& port = *ports_.emplace_back(std::make_unique<Port>());
  port.number = ports_.size() - 1;
  port.address = request.address;
  // By address, not by the order of opening, which is the threads' whim.
  port.rng.seed(rules_.seed * 1000003 + std::hash<std::string>{}(request.address));
  return std::unique_ptr<FabricEndpoint>(new FakeEndpoint(*this, port));
}

Result<std::vector<FabricInterface>> FakeFabric::interfaces(const std::string& provider) {
  return std::vector<FabricInterface>{{provider, "fake0", "127.0.0.1", 0, rules_.reaches_gpus}};
}

FakeFabric::Port* FakeFabric::port_at(const std::string& address) {
  const auto it = std::find_if(ports_.begin(), ports_.end(),
                               [&](const auto& p) { return p->is_open && p->address == address; });
  return it == ports_.end() ? nullptr : it->get();
}

void FakeFabric::inject(const std::string& address, uint64_t nth, FakeFault fault) {
  const std::lock_guard lock(mutex_);
  const Port* port = port_at(address);
  faults_[address][nth + (port != nullptr ? port->num_posted : 0)] = fault;
}

void FakeFabric::cut(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  cuts_.emplace_back(port_at(a), port_at(b));
}

void FakeFabric::mend(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  std::erase(cuts_, std::pair<const Port*, const Port*>(port_at(a), port_at(b)));
}

void FakeFabric::forbid(const std::string& address) {
  const std::lock_guard lock(mutex_);
  forbidden_.push_back(address);
}

uint64_t FakeFabric::num_refused() const {
  const std::lock_guard lock(mutex_);
  return num_refused_;
}

uint64_t FakeFabric::num_landed() const {
  const std::lock_guard lock(mutex_);
  return num_landed_;
}

uint64_t FakeFabric::random(Port& port, uint64_t below) {
  return below == 0 ? 0 : port.rng() % below;
}

bool FakeFabric::is_cut(const Port& a, const Port& b) const {
  return std::any_of(cuts_.begin(), cuts_.end(), [&](const auto& c) {
    return (c.first == &a && c.second == &b) || (c.first == &b && c.second == &a);
  });
}

Result<bool> FakeFabric::post(Port& from, const FabricWrite& write, FabricOp* op) {
  const std::lock_guard lock(mutex_);
  if (random(from, 100) < rules_.busy_percent) return false;
  Port& to = *ports_[write.peer];
  if (!to.is_open) return driver_error("fake fabric: {} is closed", to.address);
  Flight flight{.from = from.number,
                .to = to.number,
                .write = write,
                .op = op,
                .not_before = to.num_polls,
                .zombie_bytes = {}};
  flight.not_before += random(from, rules_.max_delay_polls + 1);
  auto& faults = faults_[from.address];
  const auto fault = faults.find(from.num_posted++);
  if (fault != faults.end()) {
    meet_fault(from, std::move(flight), fault->second);
    return true;
  }
  if (!write.wants_delivery) {
    from.events.push_back({FabricEvent::Kind::kWritten, op, 0, {}});
    flight.op = nullptr;
  }
  to.incoming.push_back(std::move(flight));
  return true;
}

void FakeFabric::meet_fault(Port& from, Flight flight, FakeFault fault) {
  Port& to = *ports_[flight.to];
  if (fault == FakeFault::kDrop) {
    from.events.push_back({FabricEvent::Kind::kWritten, flight.op, 0, {}});
    return;
  }
  if (fault == FakeFault::kMute) flight.op = nullptr;
  to.incoming.push_back(std::move(flight));
  if (fault == FakeFault::kMute) return;
  reset(from, to, fault == FakeFault::kZombie, "injected reset");
  reset(to, from, fault == FakeFault::kZombie, "injected reset");
}

// Everything on its way from `a` to `b` fails.
void FakeFabric::reset(Port& a, Port& b, bool as_zombies, const char* why) {
  std::deque<Flight> kept;
  for (Flight& f : b.incoming) {
    const bool is_hit = f.from == a.number && f.zombie_target == nullptr && !f.is_announcement_only;
    if (is_hit && f.op != nullptr) a.events.push_back({FabricEvent::Kind::kFailed, f.op, 0, why});
    f.op = is_hit ? nullptr : f.op;
    if (is_hit && as_zombies) {
      f.zombie_target = b.resolve(f.write);
      f.zombie_bytes.assign(f.write.source, f.write.source + f.write.bytes);
      f.not_before = b.num_polls + kZombiePolls + random(b, kZombiePolls);
    }
    if (!is_hit || f.zombie_target != nullptr) kept.push_back(std::move(f));
  }
  b.incoming = std::move(kept);
}

size_t FakeFabric::poll(Port& port, std::span<FabricEvent> events) {
  const std::lock_guard lock(mutex_);
  ++port.num_polls;
  const uint64_t writes = 1 + random(port, rules_.max_writes_per_poll);
  for (uint64_t i = 0; i < writes && land_one(port); ++i) continue;
  size_t n = 0;
  for (; n < events.size() && !port.events.empty(); ++n) {
    events[n] = std::move(port.events.front());
    port.events.pop_front();
  }
  return n;
}

// One of the first `reorder_window` writes that may land now, any of them.
bool FakeFabric::land_one(Port& to) {
  std::vector<size_t> ready;
  for (size_t i = 0; i < to.incoming.size() && ready.size() < rules_.reorder_window; ++i) {
    const Flight& f = to.incoming[i];
    if (f.not_before <= to.num_polls && !is_cut(*ports_[f.from], to)) ready.push_back(i);
  }
  if (ready.empty()) return false;
  const size_t chosen = ready[random(to, ready.size())];
  Flight flight = std::move(to.incoming[chosen]);
  to.incoming.erase(to.incoming.begin() + static_cast<std::ptrdiff_t>(chosen));
  land(to, flight);
  return true;
}

void FakeFabric::land(Port& to, const Flight& f) {
  if (f.op != nullptr) ports_[f.from]->events.push_back({FabricEvent::Kind::kWritten, f.op, 0, {}});
  if (!f.is_announcement_only) {
    const bool is_zombie = f.zombie_target != nullptr;
    std::byte* target = is_zombie ? f.zombie_target : to.resolve(f.write);
    if (target == nullptr) {
      ++num_refused_;
      return;
    }
    const std::byte* source = is_zombie ? f.zombie_bytes.data() : f.write.source;
    if (f.write.bytes > 0) std::memcpy(target, source, f.write.bytes);
    ++num_landed_;
  }
  to.events.push_back({FabricEvent::Kind::kArrived, nullptr, f.write.immediate, {}});
  if (!f.is_announcement_only && random(to, 100) < rules_.duplicate_percent) {
    Flight again{.from = f.from, .to = f.to, .write = f.write, .zombie_bytes = {}};
    again.is_announcement_only = true;
    again.not_before = to.num_polls + random(to, 50);
    to.incoming.push_back(std::move(again));
  }
}

}  // namespace braid::sys
