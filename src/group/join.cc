// How ranks find each other. Rank 0 takes the first free port of the candidates (store_port and up)
// and serves a store there; every rank, rank 0 too, then greets the candidates in turn, over and
// over, until its own store answers or the deadline passes. A candidate may be closed, taken by a
// foreign service or by another job's store: each is passed over and tried again later, for ours
// may come up at any time.
//
// A port that rank 0 found taken may be a store with the same secret, of another job of this user:
// once it serves, it asks there (store.h says what comes of it), while the other ranks knock at the
// same doors.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/file_name.h"
#include "base/log.h"
#include "base/units.h"
#include "group/greeting.h"
#include "group/look_up.h"
#include "group/member.h"
#include "group/token.h"
#include "group/wire.h"

namespace braid::group {

namespace {

constexpr int kNumCandidates = 8;
constexpr int kBacklog = 4096;  // the kernel's own limit may be lower
constexpr int64_t kFirstPause = 2_ms,
                  kLongestPause = 100_ms;  // between rounds; ranks start seconds apart
// Before the same foreign service or other job's store is asked again.
constexpr int64_t kStrangerPause = 1_s;

// Naps until then; what the interrupt says, if it says so.
Status sleep_until(Deadline deadline, const Interrupt& interrupt) {
  while (!deadline.passed()) {
    const int64_t nap_ns = std::min(deadline.left_ns(), kInterruptNap);
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
    if (interrupt) BRAID_RETURN_IF_ERROR(interrupt());
  }
  return {};
}

struct Candidate {
  sys::Endpoint endpoint;
  int64_t not_before_ns = 0;
  bool is_warned = false;
  std::string found = "not tried";
};

class Search {
 public:
  Search(const Identity& identity, std::string token, std::vector<Candidate> candidates,
         Deadline deadline, const Interrupt& interrupt)
      : identity_(identity),
        token_(std::move(token)),
        candidates_(std::move(candidates)),
        deadline_(deadline),
        interrupt_(interrupt) {}

  /// Our store's channel, or why there is none.
  Result<Channel> run();

 private:
  std::optional<Result<Channel>> try_one(Candidate& candidate);
  void meet_stranger(Candidate& candidate, const char* what);
  Status give_up() const;

  const Identity& identity_;
  const std::string token_;
  std::vector<Candidate> candidates_;
  const Deadline deadline_;
  const Interrupt& interrupt_;
  std::string stranger_;  // who refused us last, and why
};

Result<Channel> Search::run() {
  int64_t pause_ns = kFirstPause;
  while (true) {
    for (Candidate& candidate : candidates_)
      if (auto end = try_one(candidate)) return std::move(*end);
    // A store of another job on one of several ports says nothing: rank 0 may be late, and will serve
    // on the next one. It has been told in the log.
    const bool is_only_stranger = candidates_.size() == 1 && !stranger_.empty();
    if (deadline_.passed() || is_only_stranger) return give_up();
    const int64_t nap_ns = std::min(pause_ns, deadline_.left_ns());
    BRAID_RETURN_IF_ERROR(sleep_until(Deadline::after_ns(nap_ns), interrupt_));
    pause_ns = std::min(2 * pause_ns, kLongestPause);
  }
}

std::optional<Result<Channel>> Search::try_one(Candidate& candidate) {
  if (now_ns() < candidate.not_before_ns) return std::nullopt;
  auto greeted =
      greet_store(candidate.endpoint, identity_, token_, Purpose::kJoin, deadline_, interrupt_);
  if (!greeted.ok()) return Result<Channel>(greeted.status());
  Greeting& greeting = greeted.value();
  candidate.found = greeting.text;
  switch (greeting.outcome) {
    case Greeting::Outcome::kWelcome: return Result<Channel>(std::move(greeting.channel));
    case Greeting::Outcome::kRefused:
      return Result<Channel>(invalid_argument("group: store at {} refused rank {}: {}",
                                              candidate.endpoint.text(), identity_.rank,
                                              greeting.text));
    case Greeting::Outcome::kStranger: meet_stranger(candidate, "token refused"); break;
    case Greeting::Outcome::kOtherJob: meet_stranger(candidate, "refused"); break;
    case Greeting::Outcome::kSilent:
    case Greeting::Outcome::kForeign: candidate.not_before_ns = now_ns() + kStrangerPause; break;
    case Greeting::Outcome::kRunning:
    case Greeting::Outcome::kOwn:
    case Greeting::Outcome::kNobody: break;
  }
  return std::nullopt;
}

void Search::meet_stranger(Candidate& candidate, const char* what) {
  stranger_ =
      fmt::format("{} by store at {}: {}", what, candidate.endpoint.text(), candidate.found);
  candidate.not_before_ns = now_ns() + kStrangerPause;
  if (!candidate.is_warned && candidates_.size() > 1)
    log::warn("group", "{}; looking on for a store of this job", stranger_);
  candidate.is_warned = true;
}

Status Search::give_up() const {
  if (!stranger_.empty()) return invalid_argument("group: rank {}: {}", identity_.rank, stranger_);
  std::string tried;
  for (const Candidate& candidate : candidates_)
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", candidate.endpoint.text(),
                         candidate.found);
  return unavailable("group: rank {} found no store of this job; is rank 0 running? tried {}",
                     identity_.rank, tried);
}

Status check(const Identity& identity) {
  if (identity.size < 1 || identity.size > kMaxGroupSize)
    return invalid_argument("group: size {}, expected 1 to {}", identity.size, kMaxGroupSize);
  if (identity.rank < 0 || identity.rank >= identity.size)
    return invalid_argument("group: rank {}, expected 0 to {}", identity.rank, identity.size - 1);
  if (identity.size > 1 && identity.store_port == 0)
    return invalid_argument(
        "group: {} ranks and no store port; set BRAID_STORE_PORT or MASTER_PORT", identity.size);
  if (identity.job_id.size() > kMaxJobIdBytes)
    return invalid_argument("group: job id of {} bytes, at most {} are allowed",
                            identity.job_id.size(), kMaxJobIdBytes);
  return {};
}

// One port when the user named it, else a few: MASTER_PORT itself may belong to somebody.
std::vector<uint16_t> candidate_ports(const Identity& identity, const Config& config) {
  const int first = identity.store_port;
  const bool is_named = config.integer("BRAID_STORE_PORT") == first;
  std::vector<uint16_t> ports;
  for (int port = first; port < first + (is_named ? 1 : kNumCandidates) && port <= UINT16_MAX;
       ++port)
    ports.push_back(static_cast<uint16_t>(port));
  return ports;
}

std::vector<Candidate> all_candidates(const std::vector<sys::Endpoint>& hosts,
                                      const std::vector<uint16_t>& ports) {
  std::vector<Candidate> candidates;
  for (const uint16_t port : ports)
    for (sys::Endpoint endpoint : hosts) {
      endpoint.set_port(port);
      candidates.push_back({endpoint});
    }
  return candidates;
}

struct Listener {
  sys::Fd fd;
  std::vector<sys::Endpoint> taken;  // candidates before it, by somebody else
  Status why_not;                    // without one
};

// The first candidate that can be listened on. A taken port leads to the next; an address that is
// not ours leads to the name's next address.
Listener listen_first(const std::vector<Candidate>& candidates) {
  Listener listener;
  Status last = unavailable("no port to listen on");
  for (const Candidate& candidate : candidates) {
    auto fd = sys::listen_on(candidate.endpoint, kBacklog);
    if (fd.ok()) {
      listener.fd = std::move(fd).value();
      return listener;
    }
    last = fd.status();
    if (last.code() == Code::kExhausted) listener.taken.push_back(candidate.endpoint);
  }
  listener.why_not = unavailable(
      "group: rank 0 cannot serve a store: {}; set BRAID_BIND to an address of this host, or "
      "BRAID_STORE_PORT",
      last.message());
  return listener;
}

bool all_loopback(const std::vector<sys::Endpoint>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(),
                     [](const auto& host) { return host.is_loopback(); });
}

bool means_loopback_everywhere(const std::string& address) {
  return address == "localhost" || sys::is_literal(address);
}

// Where rank 0 itself reaches a store that listens on every address.
sys::Endpoint reachable(sys::Endpoint endpoint) {
  if (!endpoint.is_wildcard()) return endpoint;
  auto loopback =
      sys::resolve(endpoint.family() == AF_INET6 ? "::1" : "127.0.0.1", endpoint.port());
  return loopback.ok() ? loopback->front() : endpoint;
}

/// What all of join() needs to know.
struct Meeting {
  const Identity& identity;
  std::vector<sys::Endpoint> hosts;  // that the store's name means here
  std::string token;
  Deadline deadline;
  const Interrupt& interrupt;
};

struct Served {
  std::unique_ptr<Store> store;
  Candidate candidate;
};

// At which addresses ranks might meet who holds a port that we found taken.
std::vector<sys::Endpoint> places_of(const Meeting& meeting, const sys::Endpoint& taken) {
  std::vector<sys::Endpoint> places{reachable(taken)};
  if (!taken.is_wildcard()) return places;
  for (sys::Endpoint host : meeting.hosts) {
    host.set_port(taken.port());
    if (host.text() != places.front().text()) places.push_back(host);
  }
  return places;
}

// What sits on a port that rank 0 found taken: a store that would mix its ranks with ours ends this,
// everything else is passed.
Status look_at_taken(const Meeting& meeting, const sys::Endpoint& taken, const std::string& at) {
  BRAID_ASSIGN_OR_RETURN(const Greeting found,
                         greet_store(taken, meeting.identity, meeting.token, Purpose::kServe,
                                     meeting.deadline, meeting.interrupt));
  using Outcome = Greeting::Outcome;
  if (found.outcome == Outcome::kRefused)
    return invalid_argument("group: rank 0 met another store at {}: {}", taken.text(), found.text);
  const bool is_of_braid = found.outcome == Outcome::kStranger ||
                           found.outcome == Outcome::kOtherJob ||
                           found.outcome == Outcome::kRunning;
  const auto level = is_of_braid ? log::Level::kWarn : log::Level::kInfo;
  log::line(level, "group", "port of {} is taken ({}); the store listens at {}", taken.text(),
            found.outcome == Outcome::kOwn ? "by this process" : found.text, at);
  return {};
}

Status look_at_taken(const Meeting& meeting, const std::vector<sys::Endpoint>& all,
                     const std::string& at) {
  for (const sys::Endpoint& taken : all)
    for (const sys::Endpoint& place : places_of(meeting, taken))
      BRAID_RETURN_IF_ERROR(look_at_taken(meeting, place, at));
  return {};
}

Result<Served> serve(const Meeting& meeting, const std::vector<sys::Endpoint>& hosts,
                     const std::vector<uint16_t>& ports) {
  const Identity& identity = meeting.identity;
  Listener listener = listen_first(all_candidates(hosts, ports));
  if (!listener.fd.is_open()) {
    BRAID_RETURN_IF_ERROR(look_at_taken(meeting, listener.taken, "none"));
    return listener.why_not;
  }
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, sys::local_endpoint(listener.fd.get()));
  Terms terms{meeting.token, identity.job_id, identity.size};
  terms.is_users_own = identity.job_token.empty();
  terms.is_nameless = terms.is_users_own && identity.job_id.empty();
  BRAID_ASSIGN_OR_RETURN(auto store, Store::serve(std::move(listener.fd), std::move(terms)));
  log::debug("group", "store listens on {}", at.text());
  BRAID_RETURN_IF_ERROR(look_at_taken(meeting, listener.taken, at.text()));
  return Served{std::move(store), {reachable(at)}};
}

// A store that closes before the group is whole belonged to a rank 0 that gave up or was restarted;
// there may be another one soon.
Result<std::unique_ptr<Group>> meet(const Meeting& meeting,
                                    const std::vector<Candidate>& candidates,
                                    std::unique_ptr<Store> store) {
  const Identity& identity = meeting.identity;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(
        Channel channel,
        Search(identity, meeting.token, candidates, meeting.deadline, meeting.interrupt).run());
    // Only rank 0 has a store, and it comes here once. NOLINTBEGIN(clang-analyzer-cplusplus.Move)
    BRAID_ASSIGN_OR_RETURN(auto member,
                           Member::start(identity, std::move(channel), std::move(store)));
    // NOLINTEND(clang-analyzer-cplusplus.Move)
    member->set_interrupt(meeting.interrupt);
    const Status ready = member->wait_ready(meeting.deadline);
    if (ready.ok()) return std::unique_ptr<Group>(std::move(member));
    if (ready.code() != Code::kPeerLost || identity.rank == 0) return ready;
    log::debug("group", "{}; looking for another store", ready.message());
  }
}

}  // namespace

Result<std::vector<sys::Endpoint>> look_up(const std::string& host, Deadline deadline,
                                           const Interrupt& interrupt) {
  BRAID_ASSIGN_OR_RETURN(const sys::Lookup lookup, sys::Lookup::begin(host, 0));
  while (true) {
    const Deadline nap = Deadline::at_ns(std::min(deadline.at_ns(), now_ns() + kInterruptNap));
    if (auto found = lookup.wait(nap)) return std::move(*found);
    if (deadline.passed())
      return timeout("address {}: the resolver of names did not answer in time", host);
    if (interrupt) BRAID_RETURN_IF_ERROR(interrupt());
  }
}

bool is_of_one_host(const Identity& identity, const std::vector<sys::Endpoint>& hosts) {
  if (identity.is_one_host) return true;
  if (!all_loopback(hosts)) return false;
  return identity.job_token.empty() || means_loopback_everywhere(identity.store_address);
}

std::vector<sys::Endpoint> where_to_listen(const Identity& identity,
                                           std::vector<sys::Endpoint> hosts) {
  if (!all_loopback(hosts) || is_of_one_host(identity, hosts)) return hosts;
  const bool has_v4 = std::any_of(hosts.begin(), hosts.end(),
                                  [](const auto& host) { return host.family() == AF_INET; });
  auto everywhere = sys::resolve(has_v4 ? "0.0.0.0" : "::", 0);
  if (!everywhere.ok()) return hosts;
  log::info("group", "{} is loopback on this host: the store listens at all addresses (BRAID_BIND)",
            identity.store_address);
  return std::move(everywhere).value();
}

Result<std::unique_ptr<Group>> Group::join(const Identity& identity, const Config& config,
                                           Deadline deadline, const Interrupt& interrupt) {
  BRAID_RETURN_IF_ERROR(check(identity));
  log::set_rank(identity.rank);
  // Who gives ranks himself may have been started by a launcher of other ranks, of hosts maybe.
  if (launched_rank(-1) == identity.rank) log::set_job_rank(identity.rank);
  if (identity.size == 1) return make_lone_group(identity);
  BRAID_ASSIGN_OR_RETURN(auto hosts, look_up(identity.store_address, deadline, interrupt));
  Meeting meeting{identity, hosts, "", deadline, interrupt};
  BRAID_ASSIGN_OR_RETURN(meeting.token,
                         choose_token(identity.job_token, is_of_one_host(identity, hosts),
                                      identity.store_address, identity.store_port));
  const std::vector<uint16_t> ports = candidate_ports(identity, config);
  if (identity.rank != 0) return meet(meeting, all_candidates(hosts, ports), nullptr);
  if (config.is_set("BRAID_BIND")) {
    BRAID_ASSIGN_OR_RETURN(hosts, look_up(config.text("BRAID_BIND"), deadline, interrupt));
  } else {
    hosts = where_to_listen(identity, std::move(hosts));
  }
  BRAID_ASSIGN_OR_RETURN(Served served, serve(meeting, hosts, ports));
  return meet(meeting, {served.candidate}, std::move(served.store));
}

}  // namespace braid::group
