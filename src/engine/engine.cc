// Engine: its birth, memory, and what arrives.
#include "engine/engine.h"

#include <algorithm>

#include "base/text.h"
#include "engine/worker.h"
#include "group/token.h"
#include "sys/host/api.h"
#include "sys/net/api.h"
#include "sys/net/private_fd.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {
namespace {

struct Listeners {
  std::vector<sys::PrivateFd> fds;
  std::vector<std::string> endpoints;  // as peers name them
  bool are_loopback = true;
};

// A wildcard is no address for a peer: those of all interfaces are, but loopback's.
Status add_endpoints(const sys::Endpoint& bound, Listeners& out) {
  if (!bound.is_wildcard()) {
    out.endpoints.push_back(bound.text());
    return {};
  }
  BRAID_ASSIGN_OR_RETURN(const auto interfaces, sys::list_interfaces());
  for (const sys::Interface& interface : interfaces) {
    if (interface.is_loopback || interface.address.family() != bound.family()) continue;
    sys::Endpoint endpoint = interface.address;
    endpoint.set_port(bound.port());
    out.endpoints.push_back(endpoint.text());
  }
  return {};
}

Result<Listeners> listen(const EngineOptions& options) {
  Listeners out;
  std::vector<std::string> hosts = options.hosts;
  if (hosts.empty()) hosts.emplace_back("127.0.0.1");
  for (const std::string& host : hosts) {
    BRAID_ASSIGN_OR_RETURN(const auto found, sys::resolve(host, options.port));
    BRAID_ASSIGN_OR_RETURN(sys::Fd fd, sys::listen_on(found.front(), 128));
    BRAID_ASSIGN_OR_RETURN(const sys::Endpoint bound, sys::local_endpoint(fd.get()));
    BRAID_RETURN_IF_ERROR(add_endpoints(bound, out));
    out.are_loopback &= bound.is_loopback();
    out.fds.emplace_back(std::move(fd));
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  constexpr size_t kMostNameBytes = 256;  // peers are told, and their messages have it
  for (const std::string& name : {options.name, options.host_id})
    if (name.size() > kMostNameBytes)
      return invalid_argument("engine: a name or host_id of {} bytes; {} are the limit",
                              name.size(), kMostNameBytes);
  for (const std::string& name : {options.name, options.host_id})
    if (valid_utf8(name) != name)
      return invalid_argument("engine: a name or host_id that is no UTF-8: '{}'", printable(name));
  if (options.cores != "auto" && options.cores != "off")
    return invalid_argument("engine: cores '{}': asked for auto or off", printable(options.cores));
  if (options.device < -1)
    return invalid_argument("engine: device {}: asked for a GPU, or -1 for none", options.device);
  if (options.lease_ns < kDeadSocketNs)  // peers beat every 250 ms, and busy ones are late
    return invalid_argument("engine: a lease of {} ms: asked for {} at least",
                            options.lease_ns / 1'000'000, kDeadSocketNs / 1'000'000);
  if (options.most_transfers == 0)
    return invalid_argument("engine: most_transfers is 0: asked for at least 1");
  BRAID_ASSIGN_OR_RETURN(Listeners listeners, listen(options));
  BRAID_ASSIGN_OR_RETURN(
      const std::string token,
      group::choose_token(options.token, listeners.are_loopback, "an engine's control port", 0));
  std::unique_ptr<Engine> engine(new Engine(options, token));
  Ground& ground = engine->ground_;
  BRAID_RETURN_IF_ERROR(
      sys::random_bytes(std::as_writable_bytes(std::span(ground.self.incarnation))));
  ground.self.name = options.name;
  BRAID_ASSIGN_OR_RETURN(ground.self.host, sys::host_id(options.host_id));
  ground.self.process = sys::process_id();
  ground.self.endpoints = listeners.endpoints;
  if (options.device >= 0) {
    sys::Cuda& cuda = options.cuda != nullptr ? *options.cuda : sys::real_cuda();
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(cuda, options.device);
    if (!gpu.ok())
      return gpu.status().with_context(
          fmt::format("engine '{}': device {}", options.name, options.device));
    ground.gpu = std::move(*gpu);
  }
  for (const NicRequest& request : options.nics) {
    BRAID_ASSIGN_OR_RETURN(Nic nic, open_nic(request));
    ground.nics.push_back(std::move(nic));
  }
  ground.self.num_nics = static_cast<uint16_t>(ground.nics.size());
  if (options.uses_local) sys::admit_peers();
  engine->watcher_ = std::make_unique<Watcher>(ground.gpu.get());
  BRAID_ASSIGN_OR_RETURN(sys::Wake wake, sys::Wake::create());
  BRAID_ASSIGN_OR_RETURN(sys::Wake call, sys::Wake::create());
  BRAID_ASSIGN_OR_RETURN(WakeSet wakes, WakeSet::create(wake.fd(), call.fd()));
  ground.turn = std::make_shared<Turn>(std::move(call));
  BRAID_RETURN_IF_ERROR(ground.notifier.begin());
  engine->worker_ =
      std::make_unique<Worker>(ground, std::move(listeners.fds), std::move(wake), std::move(wakes));
  BRAID_RETURN_IF_ERROR(engine->worker_->begin());
  return engine;
}

Engine::Engine(const EngineOptions& options, const std::string& token) : ground_(options, token) {}

Engine::~Engine() {
  // All stay where they are until the last callback has run: callbacks may call us.
  if (watcher_ != nullptr) watcher_->close();  // first: its callbacks may begin transfers
  if (worker_ != nullptr) worker_->close();    // ends all transfers
  const Status why = cancelled("the engine '{}' was closed", ground_.self.name);
  for (Callback& callback : ground_.counters.forget_all(why))
    if (callback) ground_.notifier.run([callback = std::move(callback), why] { callback(why); });
  ground_.flags.close();
  ground_.messages.close();
  ground_.notifications.close();
  ground_.notifier.close();
  ground_.regions.release_all();
}

std::string Engine::address() const { return encode(ground_.self, ground_.secret); }

Result<std::shared_ptr<Region>> Engine::register_memory(std::byte* base, uint64_t bytes) {
  return ground_.regions.add(base, bytes, -1);
}

Result<std::shared_ptr<Region>> Engine::register_gpu_memory(uint64_t address, uint64_t bytes) {
  return ground_.regions.add(reinterpret_cast<std::byte*>(address), bytes,
                             std::max(0, ground_.options.device));
}

Status Engine::unregister(const Region& region, Deadline deadline) {
  TicketPtr ticket = ground_.regions.hidden(region);  // of a call whose wait was too short
  if (ticket == nullptr) {
    ticket = ground_.ticket(fmt::format("unregistering region {}", region.id));
    BRAID_RETURN_IF_ERROR(ground_.regions.hide(region, ticket));
    const bool posted = worker_->post(
        [id = region.id, ticket](Worker& worker) { worker.remove_region(id, ticket); });
    if (!posted) (void)ticket->finish({});
  }
  BRAID_RETURN_IF_ERROR(ticket->wait(deadline));
  ground_.regions.let_go(region.id);
  return {};
}

Result<std::string> Engine::descriptor(const Region& region) const {
  BRAID_RETURN_IF_ERROR(ground_.regions.check_own(region));
  RegionDescriptor out;
  out.owner = ground_.self;
  out.id = region.id;
  out.base = reinterpret_cast<uint64_t>(region.base);
  out.bytes = region.bytes;
  out.device = region.device;
  out.is_read_only = region.is_read_only;
  for (const sys::FabricRegion* handle : region.handles)
    out.keys.push_back(handle != nullptr ? NicKey{handle->remote_address(), handle->key()}
                                         : NicKey{});
  return encode(out, ground_.secret);
}

Result<RemoteRegion> Engine::import(std::string_view descriptor) const {
  return decode_region(descriptor, ground_.secret);
}

Result<Address> Engine::import_address(std::string_view address) const {
  return decode_address(address, ground_.secret);
}

Result<TicketPtr> Engine::expect(uint32_t immediate, uint64_t count, Callback callback,
                                 std::atomic<uint64_t>* flag) {
  BRAID_ASSIGN_OR_RETURN(const Flag found, ground_.flags.find(flag));
  TicketPtr ticket = ground_.ticket(fmt::format("{} counts under immediate {}", count, immediate),
                                    0, std::move(callback));
  BRAID_ASSIGN_OR_RETURN(Reached reached,
                         ground_.counters.expect(immediate, {count, ticket, found}));
  ground_.settle(std::move(reached));
  return ticket;
}

bool Engine::tell(Mailbox& mailbox, Callback callback) {
  return mailbox.tell(
      [this, callback = std::move(callback)]() mutable { ground_.run(std::move(callback)); });
}

Result<std::unique_ptr<Watch>> Engine::watch(WatchCallback callback) {
  return watcher_->watch(std::move(callback));
}

void Engine::forget(uint32_t immediate, const Ticket* only) {
  const Status why = cancelled("immediate {}: nobody expects it any more", immediate);
  end_expectation(ground_.counters.forget(immediate, why, only), why);
}

void Engine::discard(uint32_t immediate) {
  const Status why = cancelled("immediate {}: nobody expects it any more", immediate);
  end_expectation(ground_.counters.discard(immediate, why), why);
}

void Engine::end_expectation(Callback callback, const Status& why) {
  if (callback) ground_.notifier.run([callback = std::move(callback), why] { callback(why); });
  worker_->post([](Worker&) {});  // whoever waited for it may sleep on the sockets
}

std::vector<std::string> Engine::health(Deadline deadline) {
  const TicketPtr ticket = ground_.ticket("health");
  auto lines = std::make_shared<std::vector<std::string>>();
  const bool posted = worker_->post([ticket, lines](Worker& worker) {
    *lines = worker.describe();
    (void)ticket->finish({});
  });
  if (!posted || !ticket->wait(deadline).ok()) return {};
  return *lines;
}

void Engine::cancel(const TicketPtr& ticket) {
  worker_->post([ticket](Worker& worker) {
    worker.cancel(ticket->id(), cancelled("{}: the caller took it back", ticket->what()));
  });
}

void Engine::disconnect(const Address& peer) {
  worker_->post(
      [incarnation = peer.incarnation](Worker& worker) { worker.disconnect(incarnation); });
}

}  // namespace braid::engine
