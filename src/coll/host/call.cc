#include "coll/host/call.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "coll/broadcast/steps.h"
#include "coll/host/notes.h"
#include "coll/reduce/reduce.h"
#include "comm/observe/observer.h"

namespace braid::coll {

using transport::Arrival;
using transport::PeerSet;

namespace {

uint64_t largest_block(const Moves& m) {
  uint64_t largest = std::max(m.mine.bytes, m.reduced.bytes);
  for (const ConstBlock& part : m.parts) largest = std::max(largest, part.bytes);
  for (const Block& place : m.places) largest = std::max(largest, place.bytes);
  return largest;
}

// Senders and receivers must cut alike without asking each other, so the cell size follows from
// what the signature fixes. Counts of all_to_all_v differ between ranks: there a cell is as large
// as a piece may be.
uint32_t cell_bytes_for(const comm::Comm::State& state, const Moves& m) {
  uint32_t max_piece = UINT32_MAX;
  for (const comm::LinkState& link : state.links)
    max_piece = std::min(max_piece, link.lane->caps().max_piece_bytes);
  max_piece &= ~63U;  // a cell holds whole elements
  const uint64_t wanted = state.config.bytes("BRAID_CELL");
  if (m.signature.is_uneven || state.links.empty()) return std::min<uint32_t>(max_piece, 64_KiB);
  if (wanted != 0)
    return static_cast<uint32_t>(
        std::min<uint64_t>(std::max<uint64_t>(wanted & ~63ULL, 64), max_piece));
  return plan::choose_cell_bytes(largest_block(m), max_piece);
}

plan::Plan plan_for_call(comm::Comm::State& state, uint64_t epoch, const Moves& m) {
  state.book.apply_until(epoch);
  state.absolve_links();
  plan::Plan plan = state.plan_now({m.signature.op, m.bytes, state.size()});
  plan.shares = comm::without_links(plan.shares, state.local_up_mask());
  return plan;
}

}  // namespace

Call::Call(comm::Comm::State& state, const Moves& moves)
    : state_(state),
      moves_(moves),
      epoch_(++state.epoch),
      start_ns_(now_ns()),
      plan_(plan_for_call(state, epoch_, moves)),
      cell_bytes_(cell_bytes_for(state, moves)),
      outbox_(state, epoch_, cell_bytes_, plan_.shares),
      inbox_(state.links, state.size()),
      waiter_(state),
      stall_watch_(state, state.config.duration_ns("BRAID_STALL"), start_ns_),
      entries_(static_cast<size_t>(state.size())),
      entries_missing_(state.size() - 1),
      last_progress_ns_(start_ns_) {
  plan_.cell_bytes = cell_bytes_;
  if (moves_.reduced.bytes > 0)
    reducer_.emplace(state.rank(), state.size(), moves_.parts[static_cast<size_t>(state.rank())],
                     moves_.reduced, cell_bytes_, moves_.signature.dtype, moves_.signature.redop);
  data_seen_.resize(moves_.places.size());
  for (size_t r = 0; r < moves_.places.size(); ++r) {
    if (static_cast<int>(r) == state.rank()) continue;
    data_seen_[r].resize(num_cells(moves_.places[r].bytes, cell_bytes_));
    cells_missing_ += data_seen_[r].size();
  }
  operand_seen_.resize(reducer_ ? static_cast<size_t>(state.size()) : 0);
  for (size_t r = 0; r < operand_seen_.size(); ++r)
    operand_seen_[r].resize(num_cells(moves_.reduced.bytes, cell_bytes_));
  if (reducer_ && state.size() > 1) cells_missing_ += num_cells(moves_.reduced.bytes, cell_bytes_);
}

// ---- setting up ----

std::vector<std::byte> Call::make_entry() {
  Entry entry;
  entry.signature = moves_.signature;
  entry.send_counts = moves_.send_counts;
  entry.recv_counts = moves_.recv_counts;
  entry.up_mask = state_.local_up_mask();
  if (state_.report_is_fresh) {
    entry.report_epoch = state_.report.epoch;
    for (const comm::LinkUse& use : state_.report.links)
      entry.report.push_back({use.received_bytes, use.finish_ns});
  }
  if (state_.rank() == 0) {
    entry.updates = state_.balance.take_updates(epoch_ + 1);
  }
  entries_[static_cast<size_t>(state_.rank())] = entry;
  return encode_entry(entry);
}

// Our entry goes ahead of the data on every link that carries some: a receiver does not look past
// data before all have entered, so an entry that is stuck on a link that was cut would otherwise
// hold up the links that work.
void Call::send_entries() {
  const int first = outbox_.first_usable_link();
  if (first < 0) return stop(unavailable("no usable link: {}", state_.links.back().why));
  const auto tag = encode_tag({epoch_, PieceKind::kEntry});
  for (size_t i = 0; i < state_.links.size(); ++i) {
    const int link = static_cast<int>(i);
    if (!outbox_.usable(link) || (link != first && plan_.shares[i] == 0)) continue;
    for (int step = 1; step < state_.size(); ++step)
      outbox_.push_piece(link, (state_.rank() + step) % state_.size(), tag, entry_bytes_);
  }
}

void Call::queue_block(PeerSet peers, const SendRange& range) {
  const std::vector<uint64_t> cut =
      plan::cut_cells(num_cells(range.data.bytes, cell_bytes_), plan_.shares);
  for (size_t link = 0; link + 1 < cut.size(); ++link) {
    SendRange piece = range;
    piece.cell_begin = cut[link];
    piece.cell_end = cut[link + 1];
    outbox_.push_all(static_cast<int>(link), peers, piece);
  }
}

// Broadcast. A multicast link carries the root's bytes once; see broadcast/steps.h for the others.
void Call::queue_root_block() {
  const uint64_t cells = num_cells(moves_.mine.bytes, cell_bytes_);
  const std::vector<uint64_t> cut = plan::cut_cells(cells, plan_.shares);
  const int n = state_.size();
  const int me = state_.rank();
  for (size_t i = 0; i + 1 < cut.size(); ++i) {
    SendRange range{PieceKind::kData, false,      static_cast<uint16_t>(me),
                    cut[i],           cut[i + 1], moves_.mine};
    PeerSet peers = PeerSet::all_but(me, n);
    if (!state_.links[i].lane->caps().can_multicast && broadcast_steps::is_chained(cells, n)) {
      range.forward = true;
      peers = PeerSet::only(broadcast_steps::next_in_chain(me, me, n));
    }
    outbox_.push_all(static_cast<int>(i), peers, range);
  }
}

void Call::queue_moves() {
  const int n = state_.size();
  const int me = state_.rank();
  if (moves_.signature.op == plan::Op::kBroadcast) {
    if (moves_.mine.bytes > 0) queue_root_block();
    return;
  }
  if (moves_.mine.bytes > 0)
    queue_block(PeerSet::all_but(me, n),
                {PieceKind::kData, false, static_cast<uint16_t>(me), 0, 0, moves_.mine});
  if (moves_.parts.empty()) return;
  const PieceKind kind = moves_.parts_are_operands ? PieceKind::kOperand : PieceKind::kData;
  for (int step = 1; step < n; ++step) {
    const int peer = (me + step) % n;
    queue_block(PeerSet::only(peer), {kind, false, static_cast<uint16_t>(me), 0, 0,
                                      moves_.parts[static_cast<size_t>(peer)]});
  }
}

// ---- receiving ----

bool Call::receive() {
  bool any = false;
  for (size_t link = 0; link < state_.links.size(); ++link)
    for (int step = 1; step < state_.size(); ++step)
      any |= receive_from(static_cast<int>(link), (state_.rank() + step) % state_.size());
  return any;
}

bool Call::receive_from(int link, int source) {
  bool any = false;
  Arrival arrival;
  while (inbox_.peek(link, source, &arrival) && handle(arrival, link, source)) any = true;
  return any;
}

bool Call::handle(const Arrival& arrival, int link, int source) {
  if (arrival.tag == comm::kProbeTag) {
    inbox_.finish(inbox_.take(link, source));
    return true;
  }
  const Result<Tag> decoded = decode_tag(arrival.tag);
  if (!decoded.ok()) {
    stop(decoded.status().with_context(fmt::format(
        "link {} from rank {}", state_.links[static_cast<size_t>(link)].facts.name, source)));
    return false;
  }
  const Tag& tag = decoded.value();
  if (tag.epoch > epoch_) return false;  // a peer is one call ahead: its pieces wait for us
  if (tag.epoch == epoch_ && tag.kind != PieceKind::kEntry && !agreed_ && !discarding_)
    return false;
  const Taken taken = inbox_.take(link, source);
  if (tag.epoch < epoch_ || (discarding_ && tag.kind != PieceKind::kEntry)) {
    inbox_.finish(taken);
  } else if (tag.kind == PieceKind::kEntry) {
    on_entry(arrival, source);
    inbox_.finish(taken);
  } else if (tag.kind == PieceKind::kData) {
    on_data(tag, arrival.payload, taken);
  } else {
    on_operand(tag, arrival.payload, taken);
  }
  return status_.ok();
}

void Call::on_entry(const Arrival& arrival, int source) {
  auto& slot = entries_[static_cast<size_t>(source)];
  if (slot) return;  // a probe, or a copy that came over another link
  Result<Entry> entry = decode_entry(arrival.payload);
  if (!entry.ok()) return stop(entry.status().with_context(fmt::format("from rank {}", source)));
  slot = std::move(entry).value();
  last_progress_ns_ = now_ns();
  if (--entries_missing_ == 0) all_entries_in();
}

// True when the cell is expected, complete and not here yet; a piece that cannot be true stops the
// call.
bool Call::is_new(std::vector<bool>& seen, uint64_t cell, int source, const Block& block,
                  std::span<const std::byte> payload) {
  if (cell >= seen.size() || payload.size() != cell_length(cell, block.bytes, cell_bytes_)) {
    stop(internal_error("{}: rank {} sent cell {} of {} bytes; expected {} cells of {} bytes",
                        plan::op_name(moves_.signature.op), source, cell, payload.size(),
                        seen.size(), cell_bytes_));
    return false;
  }
  if (seen[cell]) return false;
  seen[cell] = true;
  return true;
}

void Call::used(int link, size_t bytes) {
  comm::LinkUse& use = state_.report.links[static_cast<size_t>(link)];
  use.received_bytes += bytes;
  last_progress_ns_ = now_ns();
  use.finish_ns = last_progress_ns_ - start_ns_;
}

void Call::on_data(const Tag& tag, std::span<const std::byte> payload, const Taken& taken) {
  if (tag.block >= moves_.places.size()) {
    inbox_.finish(taken);
    return stop(internal_error("rank {} sent data for block {} of {}", taken.source, tag.block,
                               moves_.places.size()));
  }
  const Block& place = moves_.places[tag.block];
  if (is_new(data_seen_[tag.block], tag.cell, taken.source, place, payload)) {
    std::memcpy(place.data + cell_begin(tag.cell, cell_bytes_), payload.data(), payload.size());
    --cells_missing_;
    used(taken.link, payload.size());
    if (tag.forward) forward(tag, taken.link);
  }
  inbox_.finish(taken);
}

void Call::forward(const Tag& tag, int link) {
  const Block& place = moves_.places[tag.block];
  const int next = broadcast_steps::next_in_chain(state_.rank(), tag.block, state_.size());
  if (next == broadcast_steps::kEnd) return;
  outbox_.push(
      link, next,
      {PieceKind::kData, true, tag.block, tag.cell, tag.cell + 1, {place.data, place.bytes}});
}

void Call::on_operand(const Tag& tag, std::span<const std::byte> payload, const Taken& taken) {
  const auto source = static_cast<size_t>(taken.source);
  if (!reducer_ ||
      !is_new(operand_seen_[source], tag.cell, taken.source, moves_.reduced, payload)) {
    inbox_.finish(taken);
    return;
  }
  used(taken.link, payload.size());
  // A held slot is not acknowledged: never more than half of the depth, so that the sender has
  // slots to go on with. All operands of a cell come over one link (all ranks cut alike), so a link
  // that stops holds up no other.
  const uint32_t depth = state_.links[static_cast<size_t>(taken.link)].lane->caps().depth_pieces;
  const bool may_hold = inbox_.held(taken.link, taken.source) <= depth / 2;
  if (may_hold) {
    reducer_->add_view(tag.cell, taken.source, payload.data(), taken);
  } else {
    reducer_->add_copy(tag.cell, taken.source, payload);
    inbox_.finish(taken);
  }
  if (!reducer_->try_reduce(tag.cell)) return;
  for (const Taken& held : reducer_->held()) inbox_.finish(held);
  --cells_missing_;
  if (moves_.reduced_for_all) share_reduced(tag.cell, taken.link);
}

void Call::share_reduced(uint64_t cell, int link) {
  const auto me = static_cast<uint16_t>(state_.rank());
  outbox_.push_all(
      link, PeerSet::all_but(me, state_.size()),
      {PieceKind::kData, false, me, cell, cell + 1, {moves_.reduced.data, moves_.reduced.bytes}});
}

// ---- agreement ----

// Called once every entry is there.
// NOLINTBEGIN(bugprone-unchecked-optional-access)
void Call::all_entries_in() {
  stall_watch_.all_entered(now_ns());
  for (const auto& entry : entries_)
    for (const comm::ShareUpdate& update : entry->updates) state_.book.learn(update);
  mismatch_ = check_agreement();
  if (!mismatch_.ok()) {
    discarding_ = true;  // our entry must still reach everyone; nothing of this call touches memory
    outbox_.drop_ranges();
    return;
  }
  agreed_ = true;
  begin_local();
}

Status Call::check_agreement() const {
  const int me = state_.rank();
  const Signature& mine = moves_.signature;
  for (int r = 0; r < state_.size(); ++r) {
    const Entry& entry = *entries_[static_cast<size_t>(r)];
    if (entry.signature != mine)
      return invalid_argument("call {}: rank {} called {}, rank {} called {}", epoch_, me,
                              to_words(mine), r, to_words(entry.signature));
  }
  if (!mine.is_uneven) return {};
  for (int from = 0; from < state_.size(); ++from) {
    const auto& sends = entries_[static_cast<size_t>(from)]->send_counts;
    for (int to = 0; to < state_.size(); ++to) {
      const auto& receives = entries_[static_cast<size_t>(to)]->recv_counts;
      if (sends.size() != entries_.size() || receives.size() != entries_.size())
        return internal_error("call {}: rank {} sent {} counts, rank {} {}", epoch_, from,
                              sends.size(), to, receives.size());
      if (sends[static_cast<size_t>(to)] != receives[static_cast<size_t>(from)])
        return invalid_argument(
            "call {}: all_to_all_v: rank {} sends {} elements to rank {}, which expects {}", epoch_,
            from, sends[static_cast<size_t>(to)], to, receives[static_cast<size_t>(from)]);
    }
  }
  return {};
}
// NOLINTEND(bugprone-unchecked-optional-access)

// What stays on this rank: its own block, and, alone, the reduction of one operand.
void Call::begin_local() {
  const auto me = static_cast<size_t>(state_.rank());
  if (reducer_ && state_.size() == 1) {
    const void* own = moves_.parts[me].data;
    reduce({&own, 1}, moves_.reduced.data,
           moves_.reduced.bytes / dtype_bytes(moves_.signature.dtype), moves_.signature.dtype,
           moves_.signature.redop);
  }
  if (moves_.places.size() <= me || reducer_) return;
  const Block& place = moves_.places[me];
  const ConstBlock own = moves_.parts.empty() ? moves_.mine : moves_.parts[me];
  if (place.bytes > 0 && own.data != nullptr && own.data != place.data)
    local_ = {own.data, place.data, place.bytes};
}

// A little at a time, while links have nothing for us: all at once 32 MiB held every link up for 4
// ms. The two blocks lie apart, or are one.
bool Call::copy_local() {
  constexpr uint64_t kBytes = 128_KiB;
  if (local_.bytes == 0) return false;
  const uint64_t bytes = std::min(kBytes, local_.bytes);
  std::memcpy(local_.to, local_.from, bytes);
  local_ = {local_.from + bytes, local_.to + bytes, local_.bytes - bytes};
  return true;
}

// ---- waiting ----

bool Call::done() const {
  return entries_missing_ == 0 && (discarding_ || cells_missing_ == 0) && local_.bytes == 0 &&
         outbox_.empty() && outbox_.acked();
}

void Call::stop(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::string Call::missing() const {
  std::string text;
  for (int r = 0; r < state_.size(); ++r) {
    if (r == state_.rank()) continue;
    const auto index = static_cast<size_t>(r);
    uint64_t cells = 0;
    if (index < data_seen_.size())
      cells += static_cast<uint64_t>(
          std::count(data_seen_[index].begin(), data_seen_[index].end(), false));
    if (index < operand_seen_.size())
      cells += static_cast<uint64_t>(
          std::count(operand_seen_[index].begin(), operand_seen_[index].end(), false));
    uint64_t unacked = 0;
    for (const comm::LinkState& link : state_.links)
      unacked += link.lane->posted(r) - link.lane->acked(r);
    if (!entries_[index])
      text += fmt::format("; rank {} has not entered", r);
    else if (cells > 0 || unacked > 0)
      text +=
          fmt::format("; rank {}: {} cells expected, {} pieces unacknowledged", r, cells, unacked);
  }
  return text;
}

// Looks for trouble: a broken group, a stalled link, a passed deadline.
void Call::watch() {
  if (state_.group && state_.group->broken()) return stop(state_.group->fate());
  for (int r = 0; r < state_.size(); ++r)
    if (!entries_[static_cast<size_t>(r)] && state_.group->has_left(r))
      return stop(peer_lost("{} (call {}): rank {} has left and will not enter",
                            to_words(moves_.signature), epoch_, r));
  if (!outbox_.fate().ok()) return stop(outbox_.fate());
  if (state_.interrupt)
    if (Status interrupted = state_.interrupt(); !interrupted.ok())
      return stop(std::move(interrupted));
  const int64_t now = now_ns();
  const StallWatch::Finding found = stall_watch_.check(now, outbox_);
  if (found.kind == StallWatch::Finding::kStalled)
    outbox_.evacuate(found.link, fmt::format("no ack from rank {} for {} while other links go on",
                                             found.peer, format_ns(found.silent_ns)));
  if (found.kind == StallWatch::Finding::kProbe)
    outbox_.push_piece(found.link, found.peer, encode_tag({epoch_, PieceKind::kEntry}),
                       entry_bytes_);
  const int64_t timeout_ns = state_.config.duration_ns("BRAID_TIMEOUT");
  // Only what brings the call forward restarts the deadline: an entry, a cell, and, once all have
  // entered, an ack. Probes and second copies are answered by any peer that is alive, for as long
  // as a third one keeps everybody waiting.
  const int64_t moved_ns =
      agreed_ ? std::max(last_progress_ns_, stall_watch_.last_ack_ns()) : last_progress_ns_;
  if (now - moved_ns < timeout_ns) return;
  stop(timeout("{} (call {}): nothing moved for {}{}", to_words(moves_.signature), epoch_,
               format_ns(timeout_ns), missing()));
}

Status Call::execute() {
  entry_bytes_ = make_entry();  // carries the report of the call before, which is overwritten next
  state_.report.links.assign(state_.links.size(), {});
  if (state_.size() == 1) {
    agreed_ = true;
    begin_local();
    while (copy_local()) {
    }
    finish_report();
    return status_;
  }
  send_entries();
  queue_moves();
  constexpr int kWatchEvery =
      256;  // passes between looks for trouble while things move; a pass is under a millisecond
  for (int pass = 1; !done(); ++pass) {
    bool moved = outbox_.pump();
    for (comm::LinkState& link : state_.links)
      (void)link.lane->progress();  // a lane may be busy and move nothing of ours
    moved |= receive();
    moved = moved || copy_local();
    if (moved) {
      waiter_.reset();
    } else {
      (void)waiter_.wait();
    }
    if (!moved || pass % kWatchEvery == 0) watch();
    if (!status_.ok()) return status_;
  }
  finish_report();
  return mismatch_;
}

void Call::finish_report() {
  state_.report.epoch = epoch_;
  state_.report.plan = plan_;
  state_.report.duration_ns = now_ns() - start_ns_;
  state_.report_is_fresh = !moves_.signature.is_barrier && moves_.bytes > 0;
  if (state_.rank() != 0 || state_.size() == 1) return;
  comm::Observation seen;
  seen.up_mask = ~uint64_t{0};
  for (const auto& entry : entries_) {
    if (!entry) return;
    seen.up_mask &= entry->up_mask;
    if (entry->report_epoch != 0) seen.reports.push_back({entry->report_epoch, {}});
    for (const LinkReport& link : entry->report)
      seen.reports.back().links.push_back({link.bytes, link.finish_ns});
  }
  seen.report_plan = state_.previous_plan;
  state_.balance.observe(seen);
  state_.previous_plan = plan_;
}

namespace {

// A killed process takes its links with it, and a lane may notice before the group's monitor does.
// To say "no link is left" then would hide the cause, and our report of it would become every other
// rank's fate. The kernel closes a dead process's control connection within milliseconds, so a
// group that is still whole after this long has lost links, not a rank.
Status cause_of(Status status, const group::Group* group) {
  constexpr int64_t kNewsOfADeathNs = 500_ms;
  constexpr int64_t kLookEveryNs = 1_ms;
  if (status.code() != Code::kUnavailable || group == nullptr) return status;
  const Deadline deadline = Deadline::after_ns(kNewsOfADeathNs);
  while (!group->broken() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLookEveryNs));
  return group->broken() ? group->fate() : status;
}

}  // namespace

Status run(comm::Comm& comm, const Moves& moves) {
  comm::CallGuard guard(comm);
  BRAID_RETURN_IF_ERROR(guard.status());
  comm::Comm::State& state = guard.state();
  comm::Observed observed(state.observer.get(), [&] { return note_of(moves, state.size()); });
  Call call(state, moves);
  Status status = call.execute();
  if (!status.ok() && status.code() != Code::kInvalidArgument) {  // else the comm stays usable
    status = cause_of(std::move(status), state.group.get());
    state.fatal = status;
    if (state.group) state.group->report(status);
  }
  observed.end(status, "lanes", [&] { return link_notes_of(state.report, status.ok()); });
  return status;
}

}  // namespace braid::coll
