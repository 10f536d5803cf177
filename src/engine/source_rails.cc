// Source: rails, pieces and time.
#include <algorithm>

#include "base/log.h"
#include "engine/source.h"

namespace braid::engine {
namespace {
constexpr uint64_t kPieceBytes = 1 << 20;           // on one rail
constexpr uint64_t kStripedPieceBytes = 128 << 10;  // on several: fine enough to finish together
constexpr size_t kBatch = 16;
constexpr uint32_t kMostAgain = 64;      // then what failed before will fail again
constexpr int64_t kQuietNs = 2'000'000;  // until the target is told that nothing comes
}  // namespace

bool Source::progress(int64_t now) {
  if (state_ != State::kUp) return false;
  bool moved = false;
  for (size_t i = 0; i < rails_.size() && state_ == State::kUp; ++i) {
    moved |= poll(rails_[i], now);
    if (rails_[i].state() == Rail::State::kUp) moved |= post(rails_[i], now);
  }
  if (!rails_.empty()) tell_work(now);
  if (!listed_.empty()) moved |= look_for_answers();
  if (!staging_.empty() || !gathered_.empty()) moved |= stage(now);
  return moved;
}

// A target whose provider moves only while it is polled must know when that is worth its while.
void Source::tell_work(int64_t now) {
  const bool works = must_poll() || !queue_.empty();
  if (works) worked_at_ns_ = now;
  if (works == is_work_told_ || (!works && now - worked_at_ns_ < kQuietNs)) return;
  is_work_told_ = works;
  session_.send(FrameType::kWork, encode(Work{works}));
  (void)session_.flush();
}

bool Source::poll(Rail& rail, int64_t now) {
  completed_.clear();
  const Rail::State before = rail.state();
  const Status polled = rail.poll(completed_, now);
  for (const Rail::Flight& flight : completed_) landed(flight);
  if (!polled.ok()) rail_failed(static_cast<size_t>(&rail - rails_.data()), polled, now);
  return !completed_.empty() || rail.state() != before;
}

void Source::landed(const Rail::Flight& flight) {
  Transfer& t = *flight.transfer;
  --t.num_flying;
  settle(t);
}

// Goes on with a transfer of which no piece is on a rail any more.
void Source::settle(Transfer& t) {
  if (t.num_flying != 0 || t.has_pieces()) return;
  if (t.state == Transfer::State::kEnding) return finish(t, t.ending);
  if (t.state != Transfer::State::kPosting) return;
  // A read is complete here; the target hears of it only when it is to be told something.
  const bool is_told = t.kind == Transfer::Kind::kWrite || t.delivery.kind != MessageKind::kNone;
  if (!is_told) return finish(t, {});
  t.state = Transfer::State::kStated;
  session_.send(FrameType::kLanded, encode(Landed{t.id(), t.delivery}));
  (void)session_.flush();
}

uint64_t Source::piece_bytes(const Rail& rail) const {
  return std::min(rails_.size() > 1 ? kStripedPieceBytes : kPieceBytes, rail.most_piece_bytes());
}

// A slow rail takes a piece only if it is through with it before all rails together are through
// with what is left, or if no other would be sooner: else it would hold up the end. So the rail that
// is soonest takes it always, and nothing can wait for ever.
bool Source::is_in_time(const Rail& rail, uint64_t piece_bytes, uint64_t bytes_left) const {
  const double own_ns = rail.finish_ns(piece_bytes);
  double soonest_ns = own_ns, rate = 0;
  uint64_t bytes = bytes_left + piece_bytes;
  for (const Rail& other : rails_) {
    if (other.state() != Rail::State::kUp) continue;
    soonest_ns = std::min(soonest_ns, other.finish_ns(piece_bytes));
    rate += other.rate();
    bytes += other.flying_bytes();
  }
  return own_ns <= soonest_ns || own_ns * rate <= static_cast<double>(bytes);
}

// Takes from the transfers in turn, so that a long one does not hold up a short one.
bool Source::post(Rail& rail, int64_t now) {
  bool moved = false;
  for (size_t posted = 0; posted < kBatch && !queue_.empty();) {
    const auto found = transfers_.find(queue_.front());
    if (found == transfers_.end() || !found->second->has_pieces() ||
        found->second->state != Transfer::State::kPosting) {
      queue_.pop_front();
      continue;
    }
    Transfer& t = *found->second;
    const uint64_t room = rail.room_bytes();
    if (room == 0) break;
    const Piece piece = t.take_piece(piece_bytes(rail));
    if (rails_.size() > 1 && !is_in_time(rail, piece.bytes, t.bytes_to_post())) {
      t.give_back(piece);
      break;
    }
    const bool has_more = t.has_pieces() && posted + 1 < kBatch && room > 2 * piece.bytes;
    Result<bool> done = rail.post({&t, piece}, has_more, now);
    if (!done.ok() || !*done) {
      t.give_back(piece);
      if (done.ok()) break;
      rail_failed(static_cast<size_t>(&rail - rails_.data()), done.status(), now);
      end_if_freed(t, now);
      break;
    }
    ++t.num_flying;
    ++posted;
    moved = true;
    if (posted == kBatch && queue_.size() > 1) {
      queue_.push_back(queue_.front());
      queue_.pop_front();
    }
  }
  return moved;
}

void Source::call(size_t index, int64_t now) {
  Rail& rail = rails_[index];
  Result<std::string> name = rail.call();
  if (!name.ok()) {
    rail.set_why_down(name.status().message());
    (void)rail.close(Rail::State::kDown, now + rail.next_pause_ns());
    return;
  }
  session_.send(FrameType::kRail, encode(RailCall{static_cast<uint16_t>(index), *name}));
}

void Source::on_rail_ready(const RailReady& ready) {
  if (ready.rail >= rails_.size()) return;
  Rail& rail = rails_[ready.rail];
  if (rail.state() != Rail::State::kCalled) return;
  Status connected =
      ready.trouble.empty() ? rail.connect(ready, now_ns()) : unavailable("{}", ready.trouble);
  if (connected.ok()) return;
  rail_failed(ready.rail, connected, now_ns());
}

// Closed here at once; what flew is held until the target has closed its end, too.
void Source::rail_failed(size_t index, const Status& why, int64_t now) {
  Rail& rail = rails_[index];
  if (rail.state() == Rail::State::kDown || rail.state() == Rail::State::kFencing) return;
  log::info("engine", "'{}': rail {} to '{}' is given up for now: {}", ground_.self.name,
            rail.domain().description(), target_.name, why.message());
  rail.set_why_down(why.message());
  ++ground_.stats.rails_fenced;
  Fence fence;
  fence.rail = static_cast<uint16_t>(index);
  for (const Rail::Flight& flight : rail.close(Rail::State::kFencing, now + rail.next_pause_ns())) {
    flight.transfer->last_trouble = why;
    held_[index].push_back(flight);
    const uint64_t region = flight.transfer->planes[flight.piece.plane].remote->id;
    if (std::find(fence.regions.begin(), fence.regions.end(), region) == fence.regions.end())
      fence.regions.push_back(region);
  }
  session_.send(FrameType::kFence, encode(fence));
}

// Memory of ours that cannot be read any more takes a rail down, and would take down each of them
// in turn.
bool Source::end_if_freed(Transfer& t, int64_t now) {
  if (t.planes.empty() || t.state != Transfer::State::kPosting) return false;
  ground_.regions.note_freed();
  const auto freed = std::find_if(t.planes.begin(), t.planes.end(), [](const TransferPlane& plane) {
    return plane.local->is_freed.load();
  });
  if (freed == t.planes.end()) return false;
  take_back(
      t,
      invalid_argument("{}: our {}", t.ticket->what(), ground_.regions.why_gone(freed->local->id)),
      now);
  return true;
}

void Source::on_fenced(const Fence& fenced) {
  const size_t index = fenced.rail;
  if (index >= rails_.size() || rails_[index].state() != Rail::State::kFencing) return;
  for (const uint64_t region : fenced.regions) on_gone(region);
  Rail& rail = rails_[index];
  (void)rail.close(Rail::State::kDown, rail.retry_at_ns());
  const std::vector<Rail::Flight> flights = std::exchange(held_[index], {});
  std::vector<Transfer*> concerned;
  for (const auto& [transfer, piece] : flights) {
    --transfer->num_flying;
    if (transfer->state == Transfer::State::kPosting) {
      transfer->give_back(piece);
      ++ground_.stats.pieces_again;
    }
    if (std::find(concerned.begin(), concerned.end(), transfer) == concerned.end())
      concerned.push_back(transfer);
  }
  for (Transfer* t : concerned) {
    if (end_if_freed(*t, now_ns())) continue;
    if (t->state == Transfer::State::kPosting && ++t->num_again > kMostAgain)
      take_back(*t, t->last_trouble.with_context(where(*t)), now_ns());
    else if (t->state == Transfer::State::kPosting)
      queue_.push_back(t->id());
    else
      settle(*t);
  }
}

// --- time ---

void Source::tick(int64_t now) {
  if (state_ == State::kLost) return;
  const int64_t silent_ns = now - session_.heard_at_ns();
  if (silent_ns > ground_.options.lease_ns)
    return lose(peer_lost("nothing was heard of '{}' for {:.1f} s{}{}", target_.name,
                          static_cast<double>(silent_ns) / 1e9, dial_ ? ": " : "",
                          dial_ ? dial_->why().message() : ""));
  if (session_.is_attached() && silent_ns > kDeadSocketNs) session_.detach();
  session_.beat(now);
  (void)session_.flush();
  tick_transfers(now);
  if (is_leaving() && (transfers_.empty() || now >= leave_by_ns_)) return say_goodbye();
  tick_rails(now);
  if (!gone_unseen_.empty()) tick_regions();
}

void Source::tick_transfers(int64_t now) {
  std::vector<Transfer*> late, unanswered;
  bool must_fence = false;
  soonest_ns_ = INT64_MAX;
  for (const auto& [id, t] : transfers_) {
    if (t->state != Transfer::State::kEnding) soonest_ns_ = std::min(soonest_ns_, t->deadline_ns);
    // Nothing of it is on a rail, and a target of this host looks at its word: where the target
    // says nothing at all, being stopped perhaps, the ticket can end without an answer. What was
    // stated to one of another host cannot: it would be counted when the target goes on.
    const bool is_silent = now - std::max(t->fence_at_ns, session_.heard_at_ns()) > kDeadSocketNs;
    if (is_local_ && t->state == Transfer::State::kEnding && t->num_flying == 0 && is_silent)
      unanswered.push_back(t.get());
    if (t->state != Transfer::State::kEnding && now >= t->deadline_ns) late.push_back(t.get());
    // It is to end, and something of it still flies: nothing but a fence is sure.
    must_fence |=
        t->state == Transfer::State::kEnding && t->num_flying != 0 && now >= t->fence_at_ns;
  }
  for (Transfer* t : unanswered) finish(*t, t->ending);
  for (Transfer* t : late) take_back(*t, timeout("{}: the deadline has passed", where(*t)), now);
  if (!must_fence) return;
  for (size_t i = 0; i < rails_.size(); ++i)
    if (rails_[i].num_flying() != 0)
      rail_failed(i, cancelled("a transfer that is taken back still had pieces on it"), now);
}

void Source::tick_rails(int64_t now) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (queue_.empty()) rail.rest();
    const int64_t silent_ns = now - rail.waits_since_ns();
    if (rail.state() == Rail::State::kDown && session_.is_attached() && now >= rail.retry_at_ns())
      call(i, now);
    else if (silent_ns > ground_.options.rail_silence_ns)
      rail_failed(i,
                  timeout("a write has not {} for {:.1f} s",
                          rail.num_flying() != 0 ? "completed" : "been taken",
                          static_cast<double>(silent_ns) / 1e9),
                  now);
  }
}

}  // namespace braid::engine
