#include "backend.h"

#include <chrono>
#include <thread>

#include "base/log.h"
#include "settings.h"

namespace braid::nixl {
namespace {

Answer answer_of(Code code) {
  switch (code) {
    case Code::kOk: return Answer::kDone;
    case Code::kInvalidArgument: return Answer::kInvalid;
    case Code::kUnsupported: return Answer::kUnsupported;
    case Code::kPeerLost: return Answer::kPeerLost;
    case Code::kCancelled: return Answer::kCancelled;
    default: return Answer::kFailed;
  }
}

}  // namespace

Result<std::unique_ptr<BraidBackend>> BraidBackend::create(const Birth& birth) {
  BRAID_ASSIGN_OR_RETURN(const engine::EngineOptions options,
                         options_of(birth.agent, *birth.settings));
  return create(birth, options);
}

Result<std::unique_ptr<BraidBackend>> BraidBackend::create(const Birth& birth,
                                                           const engine::EngineOptions& options) {
  std::unique_ptr<BraidBackend> out(new BraidBackend(birth, options));
  BRAID_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(options));
  out->first_ = engine.get();
  out->engines_.emplace(options.device, std::move(engine));
  return out;
}

Answer BraidBackend::answer(const Status& status, const std::string& doing) const {
  if (!status.ok()) log::warn("nixl", "agent '{}', {}: {}", agent(), doing, status.to_string());
  return answer_of(status.code());
}

// --- memory ---

Result<engine::Engine*> BraidBackend::engine_for(const MemoryKind& kind, uint64_t device) {
  if (kind == MemoryKind::kHost) return first_;
  if (kind != MemoryKind::kGpu)
    return unsupported("memory of kind {}: asked for the host's or a GPU's",
                       static_cast<int>(kind));
  const int gpu = static_cast<int>(device);
  if (engine::Engine* const found = engine_of(gpu)) return found;
  const std::lock_guard one_at_a_time(making_);
  if (engine::Engine* const found = engine_of(gpu)) return found;
  engine::EngineOptions options = options_;
  options.device = gpu;
  options.port = 0;
  BRAID_ASSIGN_OR_RETURN(auto made, engine::Engine::create(options));
  const std::lock_guard lock(mutex_);
  return engines_.emplace(gpu, std::move(made)).first->second.get();
}

engine::Engine* BraidBackend::engine_of(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = engines_.find(device);
  return found == engines_.end() ? nullptr : found->second.get();
}

std::vector<engine::Engine*> BraidBackend::engines() const {
  const std::lock_guard lock(mutex_);
  std::vector<engine::Engine*> out;
  for (const auto& [device, engine] : engines_) out.push_back(engine.get());
  return out;
}

Answer BraidBackend::register_mem(const PlaceWithText& place, const MemoryKind& kind,
                                  Memory*& out) {
  const auto run = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(engine::Engine * engine, engine_for(kind, place.device));
    auto region =
        kind == MemoryKind::kGpu
            ? engine->register_gpu_memory(place.address, place.bytes)
            : engine->register_memory(reinterpret_cast<std::byte*>(place.address), place.bytes);
    if (!region.ok()) return region.status();
    out = new OwnMemory(engine, std::move(region).value());
    return {};
  };
  return answer(run(), fmt::format("registering {} bytes", place.bytes));
}

// NIXL does not look at the answer: whoever called it may free the memory then. So this waits for as
// long as a transfer of ours that uses it can take, and for a peer to be known as lost.
Answer BraidBackend::deregister_mem(Memory* memory) {
  const std::unique_ptr<OwnMemory> own(static_cast<OwnMemory*>(memory));
  if (own == nullptr) return Answer::kInvalid;
  const Deadline deadline = Deadline::after_ns(options_.timeout_ns + 2 * options_.lease_ns);
  Status status = own->engine->unregister(*own->region, deadline);
  while (status.code() == Code::kInvalidArgument && own->region->num_uses != 0 &&
         !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    status = own->engine->unregister(*own->region, deadline);
  }
  return answer(status, fmt::format("unregistering {} bytes", own->region->bytes));
}

Answer BraidBackend::unload_md(Memory* memory) {
  delete static_cast<PeerMemory*>(memory);
  return Answer::kDone;
}

Answer BraidBackend::get_public_data(const Memory* memory, std::string& out) const {
  const auto* own = static_cast<const OwnMemory*>(memory);
  auto descriptor = own->engine->descriptor(*own->region);
  if (descriptor.ok()) out = std::move(descriptor).value();
  return answer(descriptor.status(), "memory of its own");
}

Answer BraidBackend::load_remote_md(const PlaceWithText& place, const MemoryKind& kind,
                                    const std::string& agent_name, Memory*& out) {
  const auto run = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(engine::RemoteRegion region, first().import(place.text));
    const bool is_gpu = region->device >= 0;
    if (region->base != place.address || region->bytes != place.bytes ||
        is_gpu != (kind == MemoryKind::kGpu))
      return invalid_argument("{} bytes at {:#x}: its descriptor is of {} bytes at {:#x}{}",
                              place.bytes, place.address, region->bytes, region->base,
                              is_gpu ? " of a GPU" : "");
    {
      const std::lock_guard lock(mutex_);
      peers_[agent_name].owners.emplace(region->owner.incarnation, region->owner);
    }
    out = new PeerMemory(std::move(region));
    return {};
  };
  return answer(run(), fmt::format("memory of agent '{}'", agent_name));
}

Answer BraidBackend::load_local_md(Memory* memory, Memory*& out) {
  const auto* own = static_cast<const OwnMemory*>(memory);
  const auto run = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(const std::string text, own->engine->descriptor(*own->region));
    BRAID_ASSIGN_OR_RETURN(engine::RemoteRegion region, own->engine->import(text));
    out = new PeerMemory(std::move(region));
    return {};
  };
  return answer(run(), "memory of its own");
}

// --- peers ---

Answer BraidBackend::get_conn_info(std::string& out) const {
  out = first().address();
  return Answer::kDone;
}

Answer BraidBackend::load_remote_conn_info(const std::string& agent_name, const std::string& info) {
  auto address = first().import_address(info);
  if (address.ok()) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[agent_name];
    peer.address = std::move(address).value();
    peer.owners[peer.address.incarnation] = peer.address;
  }
  return answer(address.status(), fmt::format("address of agent '{}'", agent_name));
}

Result<engine::Address> BraidBackend::address_of(const std::string& agent_name) const {
  if (agent_name == agent()) return first().self();
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(agent_name);
  if (found == peers_.end() || found->second.address.endpoints.empty())
    return invalid_argument(
        "agent '{}' is not known here: its metadata was not loaded, or it is "
        "disconnected",
        agent_name);
  return found->second.address;
}

Answer BraidBackend::connect(const std::string& agent_name) {
  if (agent_name == agent()) return Answer::kDone;
  const auto run = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::Address address, address_of(agent_name));
    engine::TransferOptions options;
    options.timeout_ns = options_.lease_ns;
    BRAID_ASSIGN_OR_RETURN(const engine::TicketPtr ticket, first().connect(address, options));
    return ticket->wait(Deadline::after_ns(2 * options_.lease_ns));
  };
  return answer(run(), fmt::format("connecting to agent '{}'", agent_name));
}

Answer BraidBackend::disconnect(const std::string& agent_name) {
  if (agent_name == agent()) return Answer::kDone;
  Peer gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(agent_name);
    if (found == peers_.end()) return Answer::kNotFound;
    gone = std::move(found->second);
    peers_.erase(found);
  }
  for (engine::Engine* engine : engines())
    for (const auto& [incarnation, owner] : gone.owners) engine->disconnect(owner);
  return Answer::kDone;
}

// --- transfers ---

Answer BraidBackend::prep_xfer(const Operation& operation, const TransferPlaces& local,
                               const TransferPlaces& remote, const std::string& agent_name,
                               Work*& work, const TransferWishes* /*wishes*/) const {
  auto made = Request::prepare(operation, local, remote);
  if (made.ok()) work = std::move(made).value().release();
  return answer(made.status(), fmt::format("a transfer with agent '{}'", agent_name));
}

Answer BraidBackend::post_xfer(const Operation& /*operation*/, const TransferPlaces& /*local*/,
                               const TransferPlaces& /*remote*/, const std::string& agent_name,
                               Work*& work, const TransferWishes* wishes) const {
  std::vector<std::string> notice;
  if (wishes != nullptr && wishes->has_notification)
    notice = cut(wishes->notification, next_notice_++);
  auto* request = static_cast<Request*>(work);
  const Status posted =
      request->post(notice, [this, agent_name](const std::vector<std::string>& parts) {
        return tell(agent_name, parts);
      });
  if (!posted.ok()) return answer(posted, fmt::format("a transfer with agent '{}'", agent_name));
  return check_xfer(work);
}

Answer BraidBackend::check_xfer(Work* work) const {
  const auto* request = static_cast<const Request*>(work);
  if (!request->is_done()) {
    // Callers ask again at once, as they must of backends that move only then: here that would keep
    // a core from the threads that move the bytes.
    std::this_thread::yield();
    return Answer::kInProgress;
  }
  return answer(request->outcome(), "a transfer");
}

Answer BraidBackend::release_req_h(Work* work) const {
  if (work == nullptr) return Answer::kDone;
  auto* request = static_cast<Request*>(work);
  if (!request->is_done()) {
    request->cancel();
    if (!request->wait(Deadline::after_ns(options_.timeout_ns + 2 * options_.lease_ns)))
      return answer(timeout("it was taken back and has not ended"), "a transfer");
  }
  delete request;
  return Answer::kDone;
}

// --- notifications ---

Result<std::vector<engine::TicketPtr>> BraidBackend::tell(
    const std::string& agent_name, const std::vector<std::string>& notice) const {
  BRAID_ASSIGN_OR_RETURN(const engine::Address address, address_of(agent_name));
  std::vector<engine::TicketPtr> out;
  for (const std::string& part : notice) {
    BRAID_ASSIGN_OR_RETURN(engine::TicketPtr ticket, first().notify(address, part));
    out.push_back(std::move(ticket));
  }
  return out;
}

Answer BraidBackend::gen_notif(const std::string& agent_name, const std::string& message) const {
  const Status told = tell(agent_name, cut(message, next_notice_++)).status();
  return answer(told, fmt::format("a notification for agent '{}'", agent_name));
}

Answer BraidBackend::get_notifs(Notifications& out) {
  const std::lock_guard lock(joiner_mutex_);
  for (engine::Engine* engine : engines())
    while (std::optional<engine::Message> part = engine->take_notification(Deadline::after_ns(0)))
      if (std::optional<std::string> whole = joiner_.add(*part))
        out.emplace_back(part->sender, std::move(*whole));
  return Answer::kDone;
}

}  // namespace braid::nixl
