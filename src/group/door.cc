#include "group/door.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/log.h"
#include "base/units.h"
#include "group/wire.h"

namespace braid::group {

namespace {

constexpr size_t kMaxGreetings = 128;  // strangers at a time
constexpr int64_t kWarnPause = 1_s;
constexpr std::string_view kUser = "user ";

using Peers = std::vector<std::unique_ptr<Peer>>;

bool is_greeting(const std::unique_ptr<Peer>& peer) {
  return peer->state == Peer::State::kGreeting;
}

std::string user(uint32_t id) { return fmt::format("{}{}", kUser, id); }

}  // namespace

Door::Door(std::string address, bool is_for_one_user, int64_t greeting_ns)
    : address_(std::move(address)),
      only_source_(is_for_one_user ? user(::geteuid()) : ""),
      greeting_ns_(greeting_ns) {
  if (auto users = sys::PeerUsers::open(); users.ok()) users_ = std::move(users).value();
}

std::string Door::source_of(int fd) const {
  if (users_)
    if (auto id = users_->user_of(fd); id.ok()) return user(*id);
  auto from = sys::remote_endpoint(fd);
  return from.ok() ? from->host() : "?";
}

std::unique_ptr<Peer> Door::admit(sys::Fd fd, Peers& peers) {
  std::string source = source_of(fd.get());
  if (!only_source_.empty() && source.starts_with(kUser) && source != only_source_) {
    warn(fmt::format("turned out a process of {}: the job is of {}", source, only_source_));
    return nullptr;
  }
  make_room(peers);
  auto nonce = fresh_nonce();
  if (!nonce.ok()) return nullptr;
  auto peer = std::make_unique<Peer>(std::move(fd), Deadline::after_ns(greeting_ns_));
  peer->source = std::move(source);
  peer->session.store_nonce = *nonce;
  peer->channel.queue(encode(Challenge{*nonce}));
  return peer->channel.flush().ok() ? std::move(peer) : nullptr;
}

// One that has said nothing yet; any of these, since a flood that always turned out the oldest would
// turn out every rank before its answer is here.
void Door::make_room(Peers& peers) {
  const auto num = std::count_if(peers.begin(), peers.end(), is_greeting);
  if (static_cast<size_t>(num) < kMaxGreetings) return;
  std::map<std::string_view, std::vector<Peer*>> by_source;
  for (const auto& peer : peers)
    if (is_greeting(peer)) by_source[peer->source].push_back(peer.get());
  const auto has_fewer = [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  };
  auto& most = std::max_element(by_source.begin(), by_source.end(), has_fewer)->second;
  const auto silent_end =
      std::partition(most.begin(), most.end(), [](const Peer* peer) { return !peer->has_spoken; });
  const auto num_silent = static_cast<size_t>(silent_end - most.begin());
  most[random_() % (num_silent > 0 ? num_silent : most.size())]->state = Peer::State::kClosed;
}

void Door::warn(std::string_view what) {
  if (now_ns() < next_warn_ns_) return (void)++num_unsaid_;
  next_warn_ns_ = now_ns() + kWarnPause;
  const std::string more = num_unsaid_ > 0 ? fmt::format(" (and {} before)", num_unsaid_) : "";
  num_unsaid_ = 0;
  log::warn("group", "store {}: {}{}", address_, what, more);
}

}  // namespace braid::group
