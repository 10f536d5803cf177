#include "comm/comm.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/connect.h"
#include "comm/device/device.h"
#include "comm/device/health.h"
#include "comm/device/options.h"
#include "comm/keeper.h"
#include "comm/link_spec.h"
#include "comm/observe/members.h"
#include "comm/state.h"
#include "group/look_up.h"
#include "sys/host/api.h"
#include "sys/net/own_address.h"

namespace braid::comm {

using Json = nlohmann::ordered_json;

namespace {

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status check_size(int size) {
  if (size <= transport::kMaxRanks) return {};
  return unsupported("{} ranks: a comm has at most {}", size, transport::kMaxRanks);
}

/// A wrong word is wrong for one rank too, and without a GPU: commands ask a group of one.
Status check_words(const Config& config) {
  BRAID_RETURN_IF_ERROR(link_specs(config, Hosts::kOne).status());
  BRAID_RETURN_IF_ERROR(check_lane_options(config));
  return check_gpu_options(config);
}

/// A barrier, in which the ranks also tell who they are in the job.
Result<Members> meet_all(Comm::State& state, Deadline deadline) {
  const std::string own = introduction(state.rank());
  if (state.size() == 1) return members_of({own});
  BRAID_ASSIGN_OR_RETURN(const auto told, state.group->exchange("links", own, deadline));
  settle(told, state.rank());
  return members_of(told);
}

/// The line by which a program's log tells what its comms are made of, and who watches their calls.
std::unique_ptr<Observer> observer_of(const Comm::State& state, const Members& members) {
  std::vector<std::string> links;
  for (const LinkState& link : state.links) links.push_back(link.facts.name);
  log::info("comm", "{} ranks, links {}, deadline {}, balance {}, tune {}", state.size(),
            links.empty() ? "none" : fmt::format("{}", fmt::join(links, " ")),
            format_ns(state.config.duration_ns("BRAID_TIMEOUT")),
            state.config.flag("BRAID_BALANCE") ? "on" : "off", state.config.text("BRAID_TUNE"));
  return Observer::create(state.config, state.rank(), state.size(), links, members);
}

// Where other ranks reach this one: where the way to rank 0 begins. Where nobody on another host can
// be of the group the ports of links stay on loopback, too, out of strangers' reach.
Result<std::string> address_for_ranks(const group::Identity& identity, const Config& config,
                                      Deadline deadline, const group::Interrupt& interrupt) {
  const std::string loopback = "127.0.0.1";
  if (identity.is_one_host) return loopback;
  BRAID_ASSIGN_OR_RETURN(const std::vector<sys::Endpoint> hosts,
                         group::look_up(identity.store_address, deadline, interrupt));
  if (!config.is_set("BRAID_BIND") && group::is_of_one_host(identity, hosts)) return loopback;
  return sys::own_address_towards(hosts.front().host());
}

}  // namespace

Comm::Comm(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Comm>> Comm::create(const group::Identity& identity, const Config& config,
                                           const group::Interrupt& interrupt) {
  BRAID_RETURN_IF_ERROR(check_size(identity.size));
  const Deadline deadline = Deadline::after_ns(config.duration_ns("BRAID_TIMEOUT"));
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<group::Group> group,
                         group::Group::join(identity, config, deadline, interrupt));
  Config with_address = config;
  if (identity.size > 1 && !config.is_set("BRAID_RDMA_ADDRS")) {
    BRAID_ASSIGN_OR_RETURN(const std::string address,
                           address_for_ranks(identity, config, deadline, interrupt));
    BRAID_RETURN_IF_ERROR(with_address.set("BRAID_RDMA_ADDRS", address));
  }
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Comm> comm, create(std::move(group), with_address));
  comm->state_->identity.store_address = identity.store_address;
  comm->set_interrupt(interrupt);
  return comm;
}

Result<std::unique_ptr<Comm>> Comm::create(std::unique_ptr<group::Group> group,
                                           const Config& config) {
  BRAID_RETURN_IF_ERROR(check_size(group->size()));
  const Deadline deadline = Deadline::after_ns(config.duration_ns("BRAID_TIMEOUT"));
  auto state = std::make_unique<State>();
  state->identity.rank = group->rank();
  state->identity.size = group->size();
  state->identity.local_rank = group->local_rank();
  state->config = config;
  state->process_id = sys::process_id();
  state->group = std::move(group);
  if (!log::configure(config.text("BRAID_LOG")))
    log::warn("comm", "BRAID_LOG '{}' is not understood; expected level or level,folder:level",
              config.text("BRAID_LOG"));
  if (config.is_set("BRAID_LOG_FILE")) log::set_file(config.text("BRAID_LOG_FILE"));
  log::set_rank(state->rank());
  BRAID_RETURN_IF_ERROR(check_words(config));
  if (state->size() > 1) {
    BRAID_RETURN_IF_ERROR(discover_fabric(*state, deadline));
    BRAID_RETURN_IF_ERROR(connect_links(*state, deadline));
  }
  BRAID_ASSIGN_OR_RETURN(const Members members, meet_all(*state, deadline));
  if (state->size() > 1) {
    state->balance.configure(config.flag("BRAID_BALANCE"),
                             static_cast<int>(config.integer("BRAID_BALANCE_WINDOW")),
                             state->link_facts, state->size());
  }
  state->observer = observer_of(*state, members);
  if (state->size() > 1) {
    BRAID_ASSIGN_OR_RETURN(state->keeper, Keeper::start(*state));
  }
  return std::unique_ptr<Comm>(new Comm(std::move(state)));
}

Comm::~Comm() {
  (void)close();
  if (state_->is_forked())
    // NOLINTNEXTLINE(bugprone-unused-return-value): leaked on purpose
    (void)state_.release();  // a fork has no keeper to join and must not touch the lanes
}

// Peers may still wait for our last acknowledgements: the keeper goes on sending them until
// everyone is here, or for a moment when somebody never comes.
bool Comm::meet_for_farewell() {
  constexpr int64_t kFarewellNs = 2'000'000'000;
  const Status farewell = state_->group->barrier("close", Deadline::after_ns(kFarewellNs));
  if (!farewell.ok()) log::debug("comm", "closing without the others: {}", farewell.to_string());
  return farewell.ok();
}

Status Comm::close(bool say_farewell) {
  if (state_->is_forked()) return {};  // the parent's: its threads and peers are not ours
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_closed.exchange(true)) return {};
  }
  if (!state_->group) return {};
  state_->group->set_interrupt({});  // what is short anyway, ends in peace
  // Our windows on the peers' device memory close before the farewell, their memory goes after it.
  const bool is_healthy = state_->fatal.ok() && !state_->group->broken();
  const bool is_through = !state_->device || state_->device->detach(say_farewell && is_healthy);
  bool has_met = say_farewell && is_healthy;
  if (has_met && state_->size() > 1) has_met = meet_for_farewell();
  state_->has_ended_in_peace = is_through && has_met;
  std::shared_ptr<Device> device;
  {
    const std::lock_guard lock(state_->health_mutex);  // health_json() may be looking at it
    device.swap(state_->device);
  }
  if (!is_through)
    leave_to_graph(std::move(device));
  else
    device.reset();
  state_->keeper.reset();  // its thread uses the links
  std::vector<LinkState> links;
  {
    const std::lock_guard lock(state_->health_mutex);
    links.swap(state_->links);
  }
  links.clear();  // the lanes use the doorbell
  state_->node_bells.clear();
  state_->doorbell.reset();
  if (state_->observer) state_->observer->close();
  state_->group->leave();
  return {};
}

// Only the group is told: it breaks for every rank, and every wait looks at that.
void Comm::abort(const std::string& why) {
  if (state_->is_forked() || state_->is_closed || !state_->group) return;
  state_->group->report(peer_lost("{}", why));
}

void Comm::set_interrupt(std::function<Status()> interrupt) {
  if (state_->group) state_->group->set_interrupt(interrupt);
  state_->interrupt = std::move(interrupt);
}

bool Comm::is_closed() const { return state_->is_closed; }
bool Comm::has_ended_in_peace() const { return state_->has_ended_in_peace; }
int Comm::rank() const { return state_->rank(); }
int Comm::size() const { return state_->size(); }
int Comm::local_rank() const { return state_->identity.local_rank; }
const std::string& Comm::store_address() const { return state_->identity.store_address; }
const Config& Comm::config() const { return state_->config; }
const fabric::Fabric& Comm::fabric() const { return state_->fabric; }
std::span<const fabric::Link> Comm::links() const { return state_->link_facts; }
std::string Comm::link_name(size_t place) const {
  if (place < state_->link_facts.size()) return state_->link_facts[place].name;
  const std::lock_guard lock(state_->health_mutex);  // close() takes them away
  return place < state_->links.size() ? state_->links[place].facts.name : "";
}
CallReport Comm::last_call() const {
  if (state_->is_forked())
    return state_->last_report;  // who held the lock is not here to give it back
  const std::lock_guard lock(state_->health_mutex);
  return state_->last_report;
}

Result<plan::Plan> Comm::plan_for(const plan::Request& request) const {
  BRAID_ASSIGN_OR_RETURN(const auto lock, state_->lock_between_calls());
  return state_->plan_now(request);
}

Status Comm::force_shares(const plan::Shares& shares) {
  BRAID_ASSIGN_OR_RETURN(const auto lock, state_->lock_between_calls());
  if (state_->is_closed) return closed();
  uint64_t sum = 0;
  for (uint32_t share : shares) sum += share;
  if (!shares.empty() && (shares.size() != state_->link_facts.size() || sum != plan::kWhole))
    return invalid_argument("force_shares: {} shares that sum to {}; expected {} that sum to {}",
                            shares.size(), sum, state_->link_facts.size(), plan::kWhole);
  state_->forced = shares;
  state_->balance.freeze(!shares.empty());
  return {};
}

std::string Comm::health_json() const {
  const std::lock_guard lock(state_->health_mutex);
  Json json;
  json["ok"] = state_->group == nullptr || !state_->group->broken();
  json["rank"] = rank();
  json["size"] = size();
  json["why"] = state_->group ? state_->group->fate().to_string() : "ok";
  json["links"] = Json::array();
  for (const LinkState& link : state_->links)
    json["links"].push_back({{"name", link.facts.name},
                             {"state", link.is_down ? "down" : "up"},
                             {"paced", link.lane->caps().is_paced},
                             {"down_count", link.down_count},
                             {"resent_pieces", link.resent_pieces},
                             {"why", link.why}});
  json["events"] = state_->events;
  if (state_->device != nullptr) json["gpu"] = gpu_health(*state_->device);
  return dump(json);
}

std::string Comm::links_json(bool on_gpu) const {
  const std::lock_guard lock(state_->health_mutex);
  Json json = Json::array();
  if (on_gpu && state_->device != nullptr) json = gpu_links(*state_->device);
  if (!on_gpu)
    for (const fabric::Link& link : state_->link_facts) json.push_back(json_of(link));
  return dump(json);
}

// With what the GPU has done by now, unless a call is under way.
Result<Observer*> Comm::settled_observer() {
  Observer* observer = state_->observer.get();
  if (observer == nullptr || !observer->keeps_calls())
    return invalid_argument(
        "comm of rank {} keeps no calls; BRAID_TRACE_CALLS says how many are to be kept", rank());
  // The keeper has the lock for microseconds at a time; a call may have it for as long as it waits.
  constexpr int64_t kPatienceNs = 5'000'000;
  const Deadline deadline = Deadline::after_ns(kPatienceNs);
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  while (!lock.owns_lock() && !state_->in_call && !deadline.passed()) {
    std::this_thread::yield();
    (void)lock.try_lock();
  }
  if (lock.owns_lock() && !state_->is_closed && state_->device) state_->device->call_watch().look();
  return observer;
}

Result<std::string> Comm::trace_json() {
  BRAID_ASSIGN_OR_RETURN(const Observer* observer, settled_observer());
  return observer->trace();
}

Result<std::string> Comm::flight_json() {
  BRAID_ASSIGN_OR_RETURN(const Observer* observer, settled_observer());
  return observer->flight_record();
}

void Comm::call_it(const std::string& name) {
  if (state_->observer) state_->observer->journal().rename(name);
}

Status Comm::closed() const { return invalid_argument("comm of rank {} is closed", rank()); }

Result<std::string> Comm::explain_words(const plan::Request& request) const {
  if (state_->is_closed) return closed();
  if (state_->link_facts.empty()) return std::string("one rank: nothing is sent\n");
  BRAID_ASSIGN_OR_RETURN(const plan::Plan plan, plan_for(request));
  return plan::to_words(plan, state_->link_facts);
}

Result<std::string> Comm::explain_json(const plan::Request& request) const {
  if (state_->is_closed) return closed();
  BRAID_ASSIGN_OR_RETURN(const plan::Plan plan, plan_for(request));
  return plan::to_json(plan, state_->link_facts);
}

std::vector<std::string> Comm::balance_log() const {
  const std::lock_guard lock(state_->health_mutex);
  return state_->events;
}

}  // namespace braid::comm
