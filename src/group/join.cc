// How ranks find each other. Rank 0 takes the first free port of the candidates (store_port and up)
// and serves a store there; every rank, rank 0 too, then greets the candidates in turn, over and
// over, until its own store answers or the deadline passes. A candidate may be closed, taken by a
// foreign service or by another job's store: each is passed over and tried again later, for ours
// may come up at any time.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/units.h"
#include "group/greeting.h"
#include "group/member.h"
#include "group/token.h"

namespace braid::group {

namespace {

constexpr int kNumCandidates = 8;
constexpr int kBacklog = 512;
constexpr int64_t kFirstPause = 2_ms,
                  kLongestPause = 100_ms;  // between rounds; ranks start seconds apart
// Before the same foreign service or other job's store is asked again.
constexpr int64_t kStrangerPause = 1_s;
// A store of another job may sit on our first port while our own has yet to start. After this long
// it is more likely that our token is wrong.
constexpr int64_t kStrangerPatience = 10_s;

struct Candidate {
  sys::Endpoint endpoint;
  int64_t not_before_ns = 0;
  bool is_warned = false;
  std::string found = "not tried";
};

class Search {
 public:
  Search(const Identity& identity, std::string token, std::vector<Candidate> candidates,
         Deadline deadline)
      : identity_(identity),
        token_(std::move(token)),
        candidates_(std::move(candidates)),
        deadline_(deadline) {}

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
  int64_t stranger_since_ns_ = INT64_MAX;
  std::string stranger_;  // who refused us last, and why
};

Result<Channel> Search::run() {
  int64_t pause_ns = kFirstPause;
  while (true) {
    for (Candidate& candidate : candidates_)
      if (auto end = try_one(candidate)) return std::move(*end);
    const bool is_only_stranger = candidates_.size() == 1 && !stranger_.empty();
    const bool is_patient = stranger_.empty() || now_ns() - stranger_since_ns_ < kStrangerPatience;
    if (deadline_.passed() || is_only_stranger || !is_patient) return give_up();
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, deadline_.left_ns())));
    pause_ns = std::min(2 * pause_ns, kLongestPause);
  }
}

std::optional<Result<Channel>> Search::try_one(Candidate& candidate) {
  if (now_ns() < candidate.not_before_ns) return std::nullopt;
  Greeting greeting = greet_store(candidate.endpoint, identity_, token_, deadline_);
  candidate.found = greeting.text;
  switch (greeting.outcome) {
    case Greeting::Outcome::kWelcome: return Result<Channel>(std::move(greeting.channel));
    case Greeting::Outcome::kRefused:
      return Result<Channel>(invalid_argument("group: store at {} refused rank {}: {}",
                                              candidate.endpoint.text(), identity_.rank,
                                              greeting.text));
    case Greeting::Outcome::kStranger: meet_stranger(candidate, "token refused"); break;
    case Greeting::Outcome::kOtherJob: meet_stranger(candidate, "refused"); break;
    case Greeting::Outcome::kForeign: candidate.not_before_ns = now_ns() + kStrangerPause; break;
    case Greeting::Outcome::kRunning:
    case Greeting::Outcome::kNobody: break;
  }
  return std::nullopt;
}

void Search::meet_stranger(Candidate& candidate, const char* what) {
  stranger_ =
      fmt::format("{} by store at {}: {}", what, candidate.endpoint.text(), candidate.found);
  candidate.not_before_ns = now_ns() + kStrangerPause;
  stranger_since_ns_ = std::min(stranger_since_ns_, now_ns());
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

// The first candidate that can be listened on. A taken port leads to the next; an address that is
// not ours leads to the name's next address.
Result<sys::Fd> listen_first(const std::vector<Candidate>& candidates) {
  Status last = unavailable("group: no port to listen on");
  for (const Candidate& candidate : candidates) {
    auto listener = sys::listen_on(candidate.endpoint, kBacklog);
    if (listener.ok()) return listener;
    last = listener.status();
  }
  return unavailable(
      "group: rank 0 cannot serve a store: {}; set BRAID_BIND to an address of this host, or "
      "BRAID_STORE_PORT",
      last.message());
}

// Where rank 0 itself reaches a store that listens on every address.
sys::Endpoint reachable(sys::Endpoint endpoint) {
  if (!endpoint.is_wildcard()) return endpoint;
  auto loopback =
      sys::resolve(endpoint.family() == AF_INET6 ? "::1" : "127.0.0.1", endpoint.port());
  return loopback.ok() ? loopback->front() : endpoint;
}

struct Served {
  std::unique_ptr<Store> store;
  Candidate candidate;
};

Result<Served> serve(const Identity& identity, const Config& config,
                     const std::vector<uint16_t>& ports, std::string token) {
  const std::string& bind =
      config.is_set("BRAID_BIND") ? config.text("BRAID_BIND") : identity.store_address;
  BRAID_ASSIGN_OR_RETURN(const auto hosts, sys::resolve(bind, 0));
  BRAID_ASSIGN_OR_RETURN(sys::Fd listener, listen_first(all_candidates(hosts, ports)));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, sys::local_endpoint(listener.get()));
  BRAID_ASSIGN_OR_RETURN(
      auto store,
      Store::serve(std::move(listener), {std::move(token), identity.job_id, identity.size}));
  log::debug("group", "store listens on {}", at.text());
  return Served{std::move(store), {reachable(at)}};
}

// A store that closes before the group is whole belonged to a rank 0 that gave up or was restarted;
// there may be another one soon.
Result<std::unique_ptr<Group>> meet(const Identity& identity, const std::string& token,
                                    const std::vector<Candidate>& candidates,
                                    std::unique_ptr<Store> store, Deadline deadline) {
  while (true) {
    BRAID_ASSIGN_OR_RETURN(Channel channel, Search(identity, token, candidates, deadline).run());
    // Only rank 0 has a store, and it comes here once. NOLINTBEGIN(clang-analyzer-cplusplus.Move)
    BRAID_ASSIGN_OR_RETURN(auto member,
                           Member::start(identity, std::move(channel), std::move(store)));
    // NOLINTEND(clang-analyzer-cplusplus.Move)
    const Status ready = member->wait_ready(deadline);
    if (ready.ok()) return std::unique_ptr<Group>(std::move(member));
    if (ready.code() != Code::kPeerLost || identity.rank == 0) return ready;
    log::debug("group", "{}; looking for another store", ready.message());
  }
}

}  // namespace

Result<std::unique_ptr<Group>> Group::join(const Identity& identity, const Config& config,
                                           Deadline deadline) {
  BRAID_RETURN_IF_ERROR(check(identity));
  log::set_rank(identity.rank);
  if (identity.size == 1) return make_lone_group(identity);
  BRAID_ASSIGN_OR_RETURN(const auto hosts, sys::resolve(identity.store_address, 0));
  const bool is_loopback =
      std::all_of(hosts.begin(), hosts.end(), [](const auto& host) { return host.is_loopback(); });
  BRAID_ASSIGN_OR_RETURN(
      const std::string token,
      choose_token(identity.job_token, is_loopback, identity.store_address, identity.store_port));
  const std::vector<uint16_t> ports = candidate_ports(identity, config);
  if (identity.rank != 0)
    return meet(identity, token, all_candidates(hosts, ports), nullptr, deadline);
  BRAID_ASSIGN_OR_RETURN(Served served, serve(identity, config, ports, token));
  return meet(identity, token, {served.candidate}, std::move(served.store), deadline);
}

}  // namespace braid::group
