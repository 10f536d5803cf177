#include "engine/target.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/log.h"
#include "engine/cores.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {
namespace {
constexpr size_t kMostDone = 1 << 16;  // of one frame
}  // namespace

Target::Target(Ground& ground, const Incarnation& source)
    : ground_(ground), source_(source), lease_ns_(ground.options.lease_ns), copier_(ground) {}

void Target::attach(ControlSocket socket, uint64_t peer_received) {
  session_.attach(std::move(socket), peer_received);
  (void)session_.flush();
}

bool Target::converse() {
  if (!session_.is_attached()) return false;
  const uint64_t before = session_.received();
  const Status pumped = session_.pump([this](const Frame& frame) { return on_frame(frame); });
  if (!pumped.ok()) {
    session_.detach();
    log::debug("engine", "'{}': socket from '{}' broke: {}", ground_.self.name, name_,
               pumped.message());
  }
  return session_.received() != before;
}

Status Target::on_frame(const Frame& frame) {
  if (!is_open_ && frame.type != FrameType::kOpen)
    return invalid_argument("a frame of type {} before OPEN", static_cast<int>(frame.type));
  const std::string_view body = frame.body;
  switch (frame.type) {
    case FrameType::kOpen:
      return take_body(decode_open(body), [&](const Open& open) { return on_open(open); });
    case FrameType::kRail:
      return take_body(decode_rail_call(body), [&](const RailCall& call) { on_rail(call); });
    case FrameType::kWork:
      return take_body(decode_work(body),
                       [&](const Work& work) { is_work_under_way_ = work.is_under_way; });
    case FrameType::kLanded:
      return take_body(decode_landed(body), [&](Landed landed) { on_landed(std::move(landed)); });
    case FrameType::kBoard:
      return take_body(decode_board_offer(body), [&](const BoardOffer& offer) { on_board(offer); });
    case FrameType::kLend:
      return take_body(decode_loan(body), [&](const Loan& loan) { on_lend(loan); });
    case FrameType::kPull:
    case FrameType::kFetch:
      return take_body(decode_pull(body),
                       [&](Pull pull) { return on_pull(frame.type, std::move(pull)); });
    case FrameType::kCancel:
      return take_body(decode_transfer_note(body),
                       [&](const TransferNote& note) { on_cancel(note.transfer); });
    case FrameType::kFence:
      return take_body(decode_fence(body), [&](Fence fence) { on_fence(std::move(fence)); });
    case FrameType::kGoneSeen:
      return take_body(decode_region_note(body),
                       [&](const RegionNote& note) { gone_.erase(note.region); });
    case FrameType::kLeave: lose("has left"); return {};
    default: return invalid_argument("a frame of type {}", static_cast<int>(frame.type));
  }
}

// --- the connection ---

std::string Target::why_not_local(const Open& open) const {
  if (!ground_.options.uses_local || !open.wants_local)
    return "copies on one host are switched off";
  if (open.host != ground_.self.host) return "it is on another host";
  // A name can be forged and a process number can mean another process in another container: only
  // the word that lies there proves that this is the memory of whoever sent it.
  uint64_t found = 0;
  const sys::PeerCopy probe{reinterpret_cast<std::byte*>(&found), open.probe_address, sizeof found};
  const Status read = sys::read_peer_memory(open.process, {&probe, 1});
  if (!read.ok()) return read.message();
  return found == open.probe_value ? "" : "its process number means another process here";
}

// Every NIC of either side carries something: the shorter list is gone through again.
std::vector<RailPair> Target::rails_with(const Open& open) const {
  std::vector<RailPair> out;
  const std::set<std::string> providers(open.nics.begin(), open.nics.end());
  for (const std::string& provider : providers) {
    std::vector<uint16_t> theirs, ours;
    for (size_t i = 0; i < open.nics.size(); ++i)
      if (open.nics[i] == provider) theirs.push_back(static_cast<uint16_t>(i));
    for (size_t i = 0; i < ground_.nics.size(); ++i)
      if (ground_.nics[i].provider == provider) ours.push_back(static_cast<uint16_t>(i));
    if (ours.empty()) continue;
    for (size_t k = 0; k < std::max(theirs.size(), ours.size()); ++k)
      out.push_back({theirs[k % theirs.size()], ours[k % ours.size()]});
  }
  return out;
}

Status Target::on_open(const Open& open) {
  if (is_open_) return invalid_argument("a second OPEN");
  is_open_ = true;
  name_ = open.name;
  process_ = open.process;
  copier_.set_source(process_);
  lease_ns_ = std::max(lease_ns_, open.lease_ns);
  Accept accept;
  accept.why_not_local = why_not_local(open);
  is_local_ = accept.is_local = accept.why_not_local.empty();
  if (!is_local_) accept.rails = rails_with(open);
  for (const RailPair& pair : accept.rails) rails_.push_back({pair, nullptr});
  log::debug("engine", "'{}': '{}' connected, {}", ground_.self.name, name_,
             is_local_ ? "on this host" : fmt::format("{} rails", rails_.size()));
  session_.send(FrameType::kAccept, encode(accept));
  // Before RAIL_READY, without which nothing is written.
  for (const uint64_t region : gone_) session_.send(FrameType::kGone, encode(RegionNote{region}));
  return {};
}

void Target::on_board(const BoardOffer& offer) {
  const Status opened =
      is_local_ ? copier_.open_board(offer) : invalid_argument("it is not on this host");
  session_.send(FrameType::kBoardReady, encode(BoardAnswer{opened.message()}));
}

void Target::on_lend(const Loan& loan) {
  if (!is_local_) return;
  if (const Status lent = copier_.lend(loan); !lent.ok())
    log::warn("engine", "'{}': memory that '{}' lends: {}", ground_.self.name, name_,
              lent.message());
}

Result<RailReady> Target::answer(const RailCall& call) {
  Rail& rail = rails_[call.rail];
  const Nic& nic = ground_.nics[rail.pair.target_nic];
  rail.endpoint.reset();  // the old one first: what it would still let in must not land
  const WideCores wide;
  BRAID_ASSIGN_OR_RETURN(rail.endpoint, nic.domain->open_endpoint({}));
  BRAID_RETURN_IF_ERROR(rail.endpoint->add_peer(call.endpoint).status());
  RailReady ready;
  ready.rail = call.rail;
  ready.endpoint = rail.endpoint->name();
  ready.probe_address = nic.probe_region->remote_address();
  ready.probe_key = nic.probe_region->key();
  return ready;
}

void Target::on_rail(const RailCall& call) {
  if (call.rail >= rails_.size()) return;
  Result<RailReady> ready = answer(call);
  if (!ready.ok()) {
    rails_[call.rail].endpoint.reset();
    RailReady trouble;
    trouble.rail = call.rail;
    trouble.trouble = ready.status().message();
    ready = trouble;
  }
  is_work_under_way_ = true;  // the probe comes
  session_.send(FrameType::kRailReady, encode(*ready));
}

void Target::on_fence(Fence fence) {
  if (fence.rail < rails_.size()) rails_[fence.rail].endpoint.reset();
  // A write to memory that was unregistered, or freed, looks like a broken rail: the source is told
  // which.
  ground_.regions.note_freed();
  std::erase_if(fence.regions,
                [this](uint64_t region) { return ground_.regions.find(region) != nullptr; });
  session_.send(FrameType::kFenced, encode(fence));
}

void Target::fence_rails() {
  for (Rail& rail : rails_) rail.endpoint.reset();
  gone_.clear();
}

void Target::tell_gone(uint64_t region) {
  if (is_lost_) return;
  gone_.insert(region);
  if (!is_open_) return;  // on_open() tells it
  session_.send(FrameType::kGone, encode(RegionNote{region}));
  (void)session_.flush();
}

// A GPU's copies cannot be taken back, and may be into the source's memory: nobody hears that we are
// gone before they are over.
void Target::settle_copies() {
  const auto has_mark = [](const Ending& ending) { return ending.mark != 0; };
  if (queue_.has_mark() || std::any_of(endings_.begin(), endings_.end(), has_mark))
    ground_.gpu->settle();
}

void Target::lose(const char* why) {
  if (is_lost_) return;
  settle_copies();
  is_lost_ = true;
  fence_rails();
  queue_.clear();
  session_.detach();
  log::debug("engine", "'{}': '{}' {}", ground_.self.name, name_, why);
}

void Target::leave() {
  settle_copies();
  if (session_.is_attached()) {
    session_.send(FrameType::kLeave, "");
    (void)session_.flush();
  }
  lose("is left");
}

void Target::tick(int64_t now) {
  const int64_t silent_ns = now - session_.heard_at_ns();
  if (silent_ns > lease_ns_) {
    ++ground_.stats.peers_lost;
    return lose("was not heard for its lease");
  }
  if (session_.is_attached() && silent_ns > kDeadSocketNs) session_.detach();
  session_.beat(now);
  (void)session_.flush();
}

short Target::events() const { return session_.has_output() ? POLLIN | POLLOUT : POLLIN; }

// --- what lands ---

bool Target::progress() {
  bool moved = false;
  std::array<sys::FabricEvent, 32> events;
  for (Rail& rail : rails_) {
    const size_t count = rail.endpoint != nullptr ? rail.endpoint->poll(events) : 0;
    // Nothing that comes this way is believed: whoever reaches a listening endpoint can send it.
    ground_.stats.stray_immediates += count;
    moved |= count != 0;
  }
  moved |= serve();
  if (!done_.empty()) {
    tell_done();
    (void)session_.flush();
    moved = true;
  }
  return moved;
}

void Target::tell_done() {
  for (size_t at = 0; at < done_.size(); at += kMostDone) {
    const auto part = std::span(done_).subspan(at, std::min(kMostDone, done_.size() - at));
    session_.send(FrameType::kDone, encode(Done{{part.begin(), part.end()}}));
  }
  done_.clear();
}

// A statement that all has landed waits for the orders before it, as one without stretches.
void Target::on_landed(Landed landed) {
  Pull statement;
  statement.transfer = landed.transfer;
  statement.is_last = true;
  statement.delivery = std::move(landed.delivery);
  take_order(false, std::move(statement));
}

Status Target::on_pull(FrameType type, Pull pull) {
  if (!is_local_) return invalid_argument("PULL from a source that is not on this host");
  take_order(type == FrameType::kFetch, std::move(pull));
  return {};
}

void Target::take_order(bool is_fetch, Pull pull) {
  if (refused_.contains(pull.transfer)) {
    if (pull.is_last) refused_.erase(pull.transfer);
    return;
  }
  CopyOrder order;
  order.is_fetch = is_fetch;
  order.pull = std::move(pull);
  queue_.push(std::move(order));
}

// Begins what can be begun, from the first order on: a GPU has several under way. The processor
// copies for one order a round. True: another round may do more at once.
bool Target::serve() {
  bool moved = end_cancelled();
  for (size_t i = 0; i < queue_.num_first(); ++i) {
    CopyOrder& order = queue_.at(i);
    Result<bool> advanced = copier_.advance(order);
    if (!advanced.ok()) {
      fail(order.pull.transfer, advanced.status());
      return true;
    }
    moved |= *advanced;
    if (order.has_rest()) break;
  }
  while (finish_first()) moved = true;
  return moved;
}

bool Target::finish_first() {
  if (queue_.is_empty()) return false;
  CopyOrder& order = queue_.at(0);
  Result<bool> is_done = copier_.is_done(order);
  if (!is_done.ok()) {
    fail(order.pull.transfer, is_done.status());
    return true;
  }
  if (!*is_done) return false;
  if (order.pull.is_last && !copier_.is_wanted(order.pull)) {
    fail(order.pull.transfer, cancelled("'{}': the source has taken it back", ground_.self.name));
    return true;
  }
  if (order.pull.slot != 0 && !order.pull.is_last) {
    session_.send(FrameType::kPulled, encode(Pulled{order.pull.transfer, order.pull.slot}));
    (void)session_.flush();
  }
  if (order.pull.is_last && deliver(order.pull.transfer, order.pull.delivery)) {
    copier_.answer(order.pull);
    done_.push_back(order.pull.transfer);
  }
  queue_.pop_front();
  return true;
}

void Target::fail(uint64_t transfer, const Status& why) {
  if (!queue_.is_whole(transfer)) refused_.insert(transfer);
  endings_.push_back({transfer, queue_.drop(transfer), why});
}

bool Target::deliver(uint64_t transfer, const Delivery& d) {
  if (d.kind != MessageKind::kNone) {
    Mailbox& box = d.kind == MessageKind::kMessage ? ground_.messages : ground_.notifications;
    if (!box.put({d.message, name_, source_})) {
      refuse(transfer, exhausted("'{}': its mailbox is full ({} bytes): nobody takes what is in it",
                                 ground_.self.name, ground_.options.mailbox_bytes));
      return false;
    }
    ++ground_.stats.messages_arrived;
  }
  if (d.has_immediate && d.count != 0) {
    ground_.stats.counts_arrived += d.count;
    ground_.settle(ground_.counters.add(d.immediate, d.count));
  }
  return true;
}

void Target::refuse(uint64_t transfer, const Status& why) {
  log::debug("engine", "'{}': refused a transfer of '{}': {}", ground_.self.name, name_,
             why.message());
  session_.send(FrameType::kRefused, encode(Refused{transfer, why.code(), why.message()}));
  (void)session_.flush();
}

// DONE tells of what was delivered before this answer; nothing else of the transfer will land. One
// that is not known here, or not any more, is answered, too, since its source waits. No frame of it
// comes after CANCEL.
void Target::on_cancel(uint64_t transfer) {
  tell_done();
  const uint64_t mark = queue_.drop(transfer);
  refused_.erase(transfer);
  endings_.push_back({transfer, mark, {}});
  (void)end_cancelled();
}

// A GPU's copies cannot be taken back: the answer waits until they are over.
bool Target::end_cancelled() {
  bool moved = false;
  while (!endings_.empty()) {
    if (endings_.front().mark != 0) {
      Result<uint64_t> done = ground_.gpu->done();
      if (done.ok() && *done < endings_.front().mark) break;
    }
    const Ending ending = endings_.front();
    endings_.pop_front();
    if (ending.why.ok())
      session_.send(FrameType::kCancelled, encode(TransferNote{ending.transfer}));
    else
      refuse(ending.transfer, ending.why);
    (void)session_.flush();
    moved = true;
  }
  return moved;
}

std::string Target::describe() const {
  return fmt::format("from '{}': {}, {} rails, {} orders waiting", name_,
                     is_local_ ? "on this host" : "by rails", rails_.size(), queue_.num_waiting());
}

}  // namespace braid::engine
