// FakeFabric: opening, registering, and what tests ask of it. fake_flights.cc and
// fake_landing.cc have what moves.
#include "sys/fabric/fake.h"

#include <algorithm>
#include <cstdlib>

#include "sys/fabric/fake_ports.h"

namespace braid::sys {

namespace {
constexpr std::string_view kPrefix = "fake:";
}  // namespace

FakeFabric::FakeFabric(const FakeRules& rules) : rules_(rules) {}
FakeFabric::~FakeFabric() = default;

FakeFabric::Site& FakeFabric::site_at(const std::string& address) {
  auto& site = sites_[address];
  if (site == nullptr) {
    site = std::make_unique<Site>();
    site->address = address;
  }
  return *site;
}

Result<std::unique_ptr<FabricDomain>> FakeFabric::open(const DomainRequest& request) {
  const std::lock_guard lock(mutex_);
  if (std::find(forbidden_.begin(), forbidden_.end(), request.address) != forbidden_.end())
    return unavailable("fake fabric: no interface at {}", request.address);
  if (request.max_write_bytes > rules_.max_write_bytes)
    return unsupported("fake fabric: writes of {} bytes asked for, {} is the limit",
                       request.max_write_bytes, rules_.max_write_bytes);
  ++num_open_;
  return std::unique_ptr<FabricDomain>(new FakeDomain(*this, site_at(request.address)));
}

Result<std::vector<FabricInterface>> FakeFabric::interfaces(const std::string& provider) {
  return std::vector<FabricInterface>{{provider, "fake0", "127.0.0.1", 0, rules_.reaches_gpus}};
}

void FakeFabric::inject(const std::string& address, uint64_t nth, FakeFault fault) {
  const std::lock_guard lock(mutex_);
  Site& site = site_at(address);
  const auto open = std::find_if(ports_.begin(), ports_.end(),
                                 [&](const auto& p) { return p->is_open && p->site == &site; });
  const uint64_t posted = open == ports_.end() ? 0 : (*open)->domain->num_posted_;
  site.faults[nth + posted] = fault;
}

void FakeFabric::cut(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  cuts_.emplace_back(&site_at(a), &site_at(b));
}

void FakeFabric::mend(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  std::erase(cuts_, std::pair<const Site*, const Site*>(&site_at(a), &site_at(b)));
}

void FakeFabric::stall(const std::string& address) {
  const std::lock_guard lock(mutex_);
  site_at(address).is_stalled = true;
}

void FakeFabric::resume(const std::string& address) {
  const std::lock_guard lock(mutex_);
  site_at(address).is_stalled = false;
}

void FakeFabric::set_rate(const std::string& address, double gbps) {
  const std::lock_guard lock(mutex_);
  site_at(address).rate_gbps = gbps;
}

FakeFabric::Port* FakeFabric::port_called(std::string_view name) const {
  if (!name.starts_with(kPrefix)) return nullptr;
  const std::string number(name.substr(kPrefix.size()));
  const size_t i = std::strtoull(number.c_str(), nullptr, 10);
  return i < ports_.size() ? ports_[i].get() : nullptr;
}

void FakeFabric::forge(std::string_view name, uint32_t immediate) {
  const std::lock_guard lock(mutex_);
  Port* port = port_called(name);
  if (port == nullptr || !port->is_open || rules_.has_trusted_immediates) return;
  FabricEvent event = fake_event(FabricEvent::Kind::kArrived, nullptr);
  event.immediate = immediate;
  port->events.push_back(event);
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

uint64_t FakeFabric::num_open() const {
  const std::lock_guard lock(mutex_);
  return num_open_;
}

FakeDomain::FakeDomain(FakeFabric& fabric, FakeFabric::Site& site)
    : fabric_(fabric), site_(site), description_("fake " + site.address) {
  limits_.max_write_bytes = fabric.rules_.max_write_bytes;
  limits_.is_truthful = fabric.rules_.is_truthful;
  limits_.has_trusted_immediates = fabric.rules_.has_trusted_immediates;
  limits_.can_read = fabric.rules_.can_read;
  limits_.fears_late_arrivals = fabric.rules_.fears_late_arrivals;
  limits_.delays_acknowledgements = fabric.rules_.delays_acknowledgements;
}

FakeDomain::~FakeDomain() {
  const std::lock_guard lock(fabric_.mutex_);
  fabric_.num_open_ -= 1 + regions_.size();
}

Result<std::unique_ptr<FabricEndpoint>> FakeDomain::open_endpoint(const EndpointRequest&) {
  const std::lock_guard lock(fabric_.mutex_);
  auto& port = *fabric_.ports_.emplace_back(std::make_unique<FakeFabric::Port>());
  port.number = fabric_.ports_.size() - 1;
  port.domain = this;
  port.site = &site_;
  // By address, not by the order of opening, which is the threads' whim.
  port.rng.seed(fabric_.rules_.seed * 1000003 + std::hash<std::string>{}(site_.address) +
                num_endpoints_++);
  ++fabric_.num_open_;
  return std::unique_ptr<FabricEndpoint>(new FakeEndpoint(fabric_, port));
}

Result<const FabricRegion*> FakeDomain::register_memory(const FabricMemory& memory, uint64_t key) {
  const std::lock_guard lock(fabric_.mutex_);
  if (memory.cuda_device >= 0 && !fabric_.rules_.reaches_gpus)
    return unsupported("{}: it does not reach memory of GPUs; GPU {} asked", description_,
                       memory.cuda_device);
  const FakeFabric::Region region{memory.base, memory.bytes, memory.access};
  if (!by_key_.emplace(key, region).second)
    return driver_error("fake fabric: key {} is taken", key);
  auto made = std::make_unique<FakeRegion>(memory.base, key);
  const FabricRegion* out = made.get();
  regions_.emplace(out, std::move(made));
  ++fabric_.num_open_;
  return out;
}

void FakeDomain::unregister(const FabricRegion* region) {
  const std::lock_guard lock(fabric_.mutex_);
  const auto found = regions_.find(region);
  if (found == regions_.end()) return;
  by_key_.erase(region->key());
  regions_.erase(found);
  --fabric_.num_open_;
}

FakeEndpoint::FakeEndpoint(FakeFabric& fabric, FakeFabric::Port& port)
    : fabric_(fabric), port_(port), name_(std::string(kPrefix) + std::to_string(port.number)) {}

FakeEndpoint::~FakeEndpoint() {
  const std::lock_guard lock(fabric_.mutex_);
  fabric_.close(port_);
}

Result<uint64_t> FakeEndpoint::add_peer(std::string_view name) {
  const std::lock_guard lock(fabric_.mutex_);
  const FakeFabric::Port* port = fabric_.port_called(name);
  if (port == nullptr) return driver_error("fake fabric: no endpoint '{}'", name);
  port_.peers.insert(port->number);
  return static_cast<uint64_t>(port->number);
}

}  // namespace braid::sys
