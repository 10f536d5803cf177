// Source: what its user and its target say.
#include "engine/source.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "sys/host/api.h"

namespace braid::engine {

Source::Source(Ground& ground, const Address& target) : ground_(ground), target_(target) {
  std::array<std::byte, sizeof session_id_ + sizeof probe_value_> random{};
  const Status made = sys::random_bytes(random);
  BRAID_CHECK(made.ok(), "{}", made.message());
  std::memcpy(session_id_.data(), random.data(), session_id_.size());
  std::memcpy(&probe_value_, random.data() + session_id_.size(), sizeof probe_value_);
  dial_ = std::make_unique<Dial>(ground.secret, ground.self.incarnation, target_, session_id_);
  open();
}

Source::~Source() { lose(cancelled("the engine was closed")); }

void Source::open() {
  Open open;
  open.name = ground_.self.name;
  open.host = ground_.self.host;
  open.process = ground_.self.process;
  open.wants_local = ground_.options.uses_local && target_.host == ground_.self.host;
  open.probe_address = reinterpret_cast<uint64_t>(&probe_value_);
  open.probe_value = probe_value_;
  open.lease_ns = ground_.options.lease_ns;
  for (const Nic& nic : ground_.nics) open.nics.push_back(nic.provider);
  session_.send(FrameType::kOpen, encode(open));  // leaves with the first socket
}

void Source::submit(std::unique_ptr<Transfer> transfer) {
  Transfer& t = *transfer;
  soonest_ns_ = std::min(soonest_ns_, t.deadline_ns);
  transfers_.emplace(t.id(), std::move(transfer));
  for (const TransferPlane& plane : t.planes)
    if (gone_.contains(plane.remote->id))
      return finish(t,
                    invalid_argument("{}: region {} of '{}' was unregistered, or its memory freed",
                                     t.ticket->what(), plane.remote->id, target_.name));
  if (state_ == State::kLost) return finish(t, peer_lost("'{}' is lost", target_.name));
  if (t.listing != nullptr && t.listing->board() != board_.get())
    return finish(t, peer_lost("{}: the connection to '{}' that it was made for has ended",
                               t.ticket->what(), target_.name));
  if (state_ == State::kUp)
    start(t);
  else
    queue_.push_back(t.id());
}

void Source::start(Transfer& t) {
  if (is_local_) return hand_over(t);
  if (!t.has_pieces()) return settle(t);
  if (const Status way = check_way(t); !way.ok()) return finish(t, way);
  queue_.push_back(t.id());
}

Status Source::check_way(const Transfer& t) const {
  for (const Rail& rail : rails_) {
    const RailPair& pair = rail.pair();
    const bool is_read = t.kind == Transfer::Kind::kRead;
    if (is_read && !rail.domain().limits().can_read)
      return unsupported("{}: {} cannot read", t.ticket->what(), rail.domain().description());
    for (const auto& [local, remote, our_offset, their_offset, end] : t.planes) {
      if (pair.target_nic >= remote->keys.size())
        return invalid_argument("{}: the descriptor has {} keys, NIC {} was asked for",
                                t.ticket->what(), remote->keys.size(), pair.target_nic);
      if (local->handles[pair.source_nic] == nullptr || remote->keys[pair.target_nic].key == 0)
        return unsupported("{}: {} does not reach memory of a GPU", t.ticket->what(),
                           rail.domain().description());
    }
  }
  return {};
}

void Source::cancel(uint64_t transfer, const Status& why) {
  const auto found = transfers_.find(transfer);
  if (found != transfers_.end()) take_back(*found->second, why, now_ns());
}

// --- the conversation ---

bool Source::converse(int64_t now) {
  if (session_.is_attached()) {
    const uint64_t before = session_.received();
    const Status pumped = session_.pump([this](const Frame& frame) { return on_frame(frame); });
    if (!pumped.ok() && state_ != State::kLost) {
      session_.detach();
      log::debug("engine", "'{}': socket to '{}' broke: {}", ground_.self.name, target_.name,
                 pumped.message());
    }
    return session_.received() != before;
  }
  if (state_ == State::kLost) return false;
  if (dial_ == nullptr)
    dial_ = std::make_unique<Dial>(ground_.secret, ground_.self.incarnation, target_, session_id_,
                                   dial_from_);
  switch (dial_->step(now, session_.received())) {
    case Dial::Outcome::kUnderWay: return false;
    case Dial::Outcome::kRefused:
      lose(dial_->why().code() == Code::kUnavailable
               ? peer_lost("'{}' does not answer: {}", target_.name, dial_->why().message())
               : dial_->why().with_context(fmt::format("'{}'", target_.name)));
      return true;
    case Dial::Outcome::kDone: attach(now); return true;
  }
  return false;
}

void Source::attach(int64_t now) {
  (void)now;
  const uint64_t peer_received = dial_->introduction().peer_received;
  session_.attach(dial_->take_socket(), peer_received);
  dial_from_ = dial_->at() + 1;
  dial_.reset();
  if (state_ == State::kDialling) state_ = State::kOpening;
  (void)session_.flush();
}

Status Source::on_frame(const Frame& frame) {
  const std::string_view body = frame.body;
  switch (frame.type) {
    case FrameType::kAccept:
      return take_body(decode_accept(body),
                       [&](const Accept& accept) { return on_accept(accept); });
    case FrameType::kRailReady:
      return take_body(decode_rail_ready(body),
                       [&](const RailReady& ready) { on_rail_ready(ready); });
    case FrameType::kBoardReady:
      return take_body(decode_board_answer(body),
                       [&](const BoardAnswer& answer) { on_board_ready(answer); });
    case FrameType::kPulled:
      return take_body(decode_pulled(body), [&](const Pulled& pulled) {
        if (ground_.stage != nullptr) ground_.stage->give_back(pulled.transfer, pulled.slot);
      });
    case FrameType::kDone:
      return take_body(decode_done(body), [&](const Done& done) {
        for (const uint64_t transfer : done.transfers) on_done(transfer);
      });
    case FrameType::kRefused:
      return take_body(decode_refused(body), [&](const Refused& refused) { on_refused(refused); });
    case FrameType::kCancelled:
      return take_body(decode_transfer_note(body),
                       [&](const TransferNote& note) { on_cancelled(note.transfer); });
    case FrameType::kFenced:
      return take_body(decode_fence(body), [&](const Fence& fence) { on_fenced(fence); });
    case FrameType::kGone:
      return take_body(decode_region_note(body),
                       [&](const RegionNote& note) { on_gone(note.region); });
    case FrameType::kLeave: lose(peer_lost("'{}' has closed its engine", target_.name)); return {};
    default: return invalid_argument("a frame of type {}", static_cast<int>(frame.type));
  }
}

Status Source::on_accept(const Accept& accept) {
  if (state_ != State::kOpening) return invalid_argument("a second ACCEPT");
  for (const RailPair& pair : accept.rails)
    if (pair.source_nic >= ground_.nics.size() || pair.target_nic >= target_.num_nics)
      return invalid_argument("a rail from NIC {} to NIC {}", pair.source_nic, pair.target_nic);
  state_ = State::kUp;
  is_local_ = accept.is_local;
  why_not_local_ = accept.why_not_local;
  for (const RailPair& pair : accept.rails)
    rails_.emplace_back(ground_.nics[pair.source_nic], pair);
  held_.resize(rails_.size());
  if (!is_local_ && rails_.empty()) {
    lose(unavailable("'{}': no way there: {}", target_.name,
                     why_not_local_.empty()
                         ? "no NIC of ours and one of its have a provider in common"
                         : why_not_local_));
    return {};
  }
  for (size_t i = 0; i < rails_.size(); ++i) call(i, now_ns());
  // Transfers that were submitted before there was a way.
  const std::deque<uint64_t> waiting = std::exchange(queue_, {});
  for (const uint64_t id : waiting) {
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || found->second->state != Transfer::State::kPosting) continue;
    start(*found->second);
  }
  return {};
}

// Whatever a peer says, a transfer whose pieces are out does not end: the rails hold on to it.
Transfer* Source::find_stated(uint64_t transfer) const {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return nullptr;
  Transfer& t = *found->second;
  return t.state == Transfer::State::kPosting || t.num_flying != 0 ? nullptr : &t;
}

void Source::on_done(uint64_t transfer) {
  if (Transfer* t = find_stated(transfer); t != nullptr) finish(*t, {});
}

void Source::on_refused(const Refused& refused) {
  Transfer* t = find_stated(refused.transfer);
  if (t == nullptr) return;
  // The target drops what is left of it until it has heard that there is no more.
  if (is_local_ && !t->is_all_told)
    session_.send(FrameType::kCancel, encode(TransferNote{refused.transfer}));
  finish(*t, Status(refused.code, fmt::format("{}: {}", where(*t), refused.why)));
}

void Source::on_cancelled(uint64_t transfer) {
  Transfer* t = find_stated(transfer);
  if (t != nullptr && t->state == Transfer::State::kEnding) finish(*t, t->ending);
}

// The region's pieces must not be written any more. What was stated has landed already.
void Source::on_gone(uint64_t region) {
  gone_.insert(region);
  gone_unseen_.push_back(region);
  std::vector<Transfer*> concerned;
  for (const auto& [id, t] : transfers_)
    if (t->state == Transfer::State::kPosting && t->names(region)) concerned.push_back(t.get());
  for (Transfer* t : concerned)
    take_back(*t,
              invalid_argument("{}: region {} of '{}' was unregistered, or its memory freed",
                               t->ticket->what(), region, target_.name),
              now_ns());
  tick_regions();
}

void Source::tick_regions() {
  std::erase_if(gone_unseen_, [this](uint64_t region) {
    const bool is_used = std::any_of(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
      const Transfer& t = *entry.second;
      return t.state != Transfer::State::kStated && t.names(region);
    });
    if (!is_used) session_.send(FrameType::kGoneSeen, encode(RegionNote{region}));
    return !is_used;
  });
}

// --- ends ---

void Source::take_back(Transfer& t, Status why, int64_t now) {
  if (t.state == Transfer::State::kEnding) return;
  const bool was_stated = t.state == Transfer::State::kStated;
  t.state = Transfer::State::kEnding;
  t.ending = std::move(why);
  t.drop_pieces();
  std::erase(staging_, t.id());
  constexpr int64_t kPatienceNs = 200'000'000;
  t.fence_at_ns = now + kPatienceNs;
  if (was_stated)
    session_.send(FrameType::kCancel, encode(TransferNote{t.id()}));
  else
    settle(t);
}

void Source::finish(Transfer& t, Status status) {
  Stats& stats = ground_.stats;
  if (status.ok()) {
    ++stats.transfers_done;
    (t.kind == Transfer::Kind::kRead ? stats.bytes_read : stats.bytes_written) += t.bytes;
  } else {
    ++stats.transfers_failed;
  }
  --ground_.num_transfers;
  const TicketPtr ticket = t.ticket;
  std::erase(staging_, t.id());
  if (ground_.stage != nullptr) ground_.stage->give_back(t.id());
  transfers_.erase(ticket->id());  // before anybody is told: its memory is free then
  ground_.finish(ticket, status);
}

void Source::lose(const Status& why) {
  if (state_ == State::kLost) return;
  state_ = State::kLost;
  // First the rails: nobody may be told of an end while something of it is being read here.
  for (Rail& rail : rails_) (void)rail.close(Rail::State::kDown, INT64_MAX);
  held_.clear();
  gathered_.clear();
  close_board();
  session_.detach();
  dial_.reset();
  queue_.clear();
  if (why.code() == Code::kPeerLost) ++ground_.stats.peers_lost;
  while (!transfers_.empty()) {
    Transfer& t = *transfers_.begin()->second;
    finish(t, t.state == Transfer::State::kEnding && !t.ending.ok()
                  ? why.with_context(t.ending.message())
                  : why.with_context(where(t)));
  }
}

void Source::leave(const Status& why) {
  if (is_leaving() || state_ == State::kLost) return;
  const int64_t now = now_ns();
  leave_by_ns_ = now + kDeadSocketNs;
  ground_.boards.drop(target_.incarnation, board_.get());  // what is begun now is another's
  why_leave_ = why;
  std::vector<Transfer*> all;
  for (const auto& [id, t] : transfers_) all.push_back(t.get());
  for (Transfer* t : all) take_back(*t, why.with_context(where(*t)), now);
  (void)session_.flush();
  if (transfers_.empty()) say_goodbye();
}

void Source::say_goodbye() {
  if (session_.is_attached()) {
    session_.send(FrameType::kLeave, "");
    (void)session_.flush();
  }
  lose(why_leave_);
}

short Source::events() const {
  if (!session_.is_attached()) return dial_ ? dial_->events() : POLLIN;
  return session_.has_output() ? POLLIN | POLLOUT : POLLIN;
}

bool Source::must_poll() const {
  return !staging_.empty() || !gathered_.empty() ||
         std::any_of(rails_.begin(), rails_.end(),
                     [](const Rail& r) { return r.num_flying() != 0; });
}

// A worker that had nothing to do sleeps for so long, and does not know of what came since.
bool Source::needs_worker() const {
  constexpr int64_t kSleepNs = 50'000'000;
  return state_ != State::kUp || !session_.is_attached() || session_.has_output() ||
         !queue_.empty() || must_poll() || soonest_ns_ - now_ns() < kSleepNs;
}

std::string Source::where(const Transfer& t) const {
  std::string rails;
  for (const Rail& rail : rails_)
    if (rail.state() != Rail::State::kUp && !rail.why_down().empty())
      rails += fmt::format(", rail {} is down ({})", rail.domain().description(), rail.why_down());
  return fmt::format("{}: {} of {} bytes not posted, {} pieces on their way to '{}'{}",
                     t.ticket->what(), t.bytes_to_post(), t.bytes, t.num_flying, target_.name,
                     rails);
}

std::string Source::describe() const {
  constexpr const char* kStates[] = {"dialling", "opening", "up", "lost"};
  constexpr const char* kRailStates[] = {"down", "called", "probing", "up", "fencing"};
  std::string out = fmt::format("'{}': {}, {} transfers", target_.name,
                                kStates[static_cast<int>(state_)], transfers_.size());
  if (is_local_) out += ", on this host";
  for (const Rail& rail : rails_) {
    out += fmt::format("; {} {}", rail.domain().description(),
                       kRailStates[static_cast<int>(rail.state())]);
    if (rail.rate() > 0) out += fmt::format(" {:.3g} GB/s", rail.rate());
    if (!rail.why_down().empty()) out += fmt::format(" ({})", rail.why_down());
  }
  return out;
}

}  // namespace braid::engine
