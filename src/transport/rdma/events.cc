// RdmaLane, the reading half: completions, arrivals and failures, and what they change.
#include "base/log.h"
#include "transport/rdma/lane.h"

namespace braid::transport::rdma {

namespace {
constexpr int kMaxBatches = 8;  // of 32 events, so that one progress() stays short
// After a failure: about what tcp needs to notice the same.
constexpr int64_t kFirstAskPauseNs = 20'000'000;
// Far above the time that any write spends on a healthy link.
constexpr int64_t kLostAfterNs = 1'000'000'000;
}  // namespace

bool RdmaLane::drain() {
  bool changed = false;
  for (int batch = 0; batch < kMaxBatches; ++batch) {
    const size_t n = endpoint_->poll(events_);
    for (size_t i = 0; i < n; ++i) on_event(events_[i]);
    changed |= n > 0;
    if (n < events_.size()) break;
  }
  return changed;
}

void RdmaLane::on_event(const sys::FabricEvent& event) {
  if (event.kind == sys::FabricEvent::Kind::kArrived) return on_arrived(unpack(event.immediate));
  if (event.kind == sys::FabricEvent::Kind::kFailed) on_failed(event);
  auto* op = static_cast<Op*>(event.op);
  if (op == nullptr) return;
  if (num_flying_ > 0) --num_flying_;
  if (op->kind == Kind::kAck) at_peer(op->peer).ack_flies_since_ns = 0;
  give_op(op);
}

void RdmaLane::on_arrived(const Immediate& immediate) {
  if (immediate.rank >= size_ || immediate.rank == self_) return note_unfounded(immediate);
  switch (immediate.kind) {
    case Kind::kPiece: return on_piece(immediate);
    case Kind::kAck: return on_ack(immediate);
    case Kind::kAsk: return on_ask(immediate);
    case Kind::kAnswer: return on_answer(immediate);
  }
}

// Said at 1, 10, 100... of them: who floods us does not flood the log.
void RdmaLane::note_unfounded(const Immediate& immediate) {
  ++num_unfounded_;
  uint64_t power = 1;
  while (power < num_unfounded_) power *= 10;
  if (power != num_unfounded_) return;
  log::warn("transport",
            "lane {}: dropped {} immediates that no member can have sent, at last one that says it "
            "is of rank {}: somebody else reaches {}",
            name_, num_unfounded_, immediate.rank, domain_->description());
}

void RdmaLane::on_piece(const Immediate& immediate) {
  Peer& p = at_peer(immediate.rank);
  const Inbox::Verdict verdict = p.in.on_piece(immediate);
  p.was_heard |= verdict == Inbox::Verdict::kNew;
  if (verdict == Inbox::Verdict::kUnfounded) note_unfounded(immediate);
}

// All records are looked at: one that was overtaken says less, never more. The greeting is an ack of
// nothing.
void RdmaLane::on_ack(const Immediate& immediate) {
  Peer& p = at_peer(immediate.rank);
  bool has_moved = false;
  for (const AckRecord& record : control_in(immediate.rank).acks) {
    AckRecord ack;
    std::memcpy(&ack, &record, sizeof ack);
    if (!is_sealed(ack, p.in.nonce())) continue;
    p.was_heard = true;
    has_moved |= p.out.on_ack(ack.released);
  }
  if (has_moved) moved(p);
  const uint64_t said = nearest(p.out.acked(), immediate.sequence);
  if (!p.was_heard || (said > p.out.acked() && said <= p.out.posted())) note_unfounded(immediate);
}

// An ack proves that the path works, so the next question can wait.
void RdmaLane::moved(Peer& p) {
  p.missing_from = UINT64_MAX;
  if (p.state == State::kUp) p.ask_at_ns = INT64_MAX;
  if (p.state == State::kUp && p.out.has_unacked()) p.ask_at_ns = now_ns() + p.ask_pause_ns;
}

// Nothing for a line that is torn, overtaken or seen: it will be repeated under a new number.
std::optional<ControlLine> RdmaLane::newer_line(int rank, bool is_answer, uint64_t last) const {
  const ControlBlock& block = control_in(rank);
  ControlLine line;
  std::memcpy(&line, is_answer ? &block.answer : &block.ask, sizeof line);
  if (!is_sealed(line, at_peer(rank).in.nonce()) || line.number <= last ||
      (line.is_answer != 0) != is_answer)
    return std::nullopt;
  return line;
}

void RdmaLane::on_ask(const Immediate& immediate) {
  Peer& p = at_peer(immediate.rank);
  const std::optional<ControlLine> line = newer_line(immediate.rank, false, p.last_ask);
  if (!line) return note_unfounded(immediate);
  if (line->life == p.in.life() + 1) {
    if (const Status s = p.in.renew(*domain_); !s.ok()) {
      return log::warn("transport", "lane {}: no new ring for rank {}: {}", name_, immediate.rank,
                       s.message());
    }
    log::info("transport", "lane {}: rank {} writes again, life {}", name_, immediate.rank,
              line->life);
  }
  p.last_ask = line->number;
  p.is_answer_due = line->life == p.in.life();
}

void RdmaLane::on_answer(const Immediate& immediate) {
  Peer& p = at_peer(immediate.rank);
  const std::optional<ControlLine> line = newer_line(immediate.rank, true, p.last_answer);
  if (!line) return note_unfounded(immediate);
  p.last_answer = line->number;
  if (line->life != wanted_life(p) || p.state == State::kDead) return;
  if (p.out.on_ack(line->released)) moved(p);
  if (p.state == State::kBroken) return renewed(immediate.rank, *line);
  note_missing(immediate.rank, line->arrived);
}

// Both answers of one pair in flight may be old, so one alone proves nothing; the same gap over a
// second does.
void RdmaLane::note_missing(int rank, uint64_t arrived) {
  Peer& p = at_peer(rank);
  if (arrived >= p.out.written()) {
    p.missing_from = UINT64_MAX;
  } else if (p.missing_from != arrived) {
    p.missing_from = arrived;
    p.missing_since_ns = now_ns();
  } else if (now_ns() - p.missing_since_ns > kLostAfterNs) {
    break_path(rank, fmt::format("pieces {} to {} were written and did not arrive", arrived,
                                 p.out.written()));
  }
}

void RdmaLane::renewed(int rank, const ControlLine& line) {
  Peer& p = at_peer(rank);
  if (!p.out.restart(line.life, {line.ring_address, line.ring_key}, line.arrived))
    return bury(rank, fmt::format("it claims {} pieces, {} to {} are possible", line.arrived,
                                  p.out.acked(), p.out.posted()));
  log::warn("transport", "lane {}: rank {} is back, life {}, writing again from piece {}", name_,
            rank, line.life, line.arrived);
  p.state = State::kUp;
  p.why = Status();
  p.missing_from = UINT64_MAX;
  p.ask_at_ns = INT64_MAX;
  p.is_ack_due = true;  // acks that failed with the path
}

void RdmaLane::on_failed(const sys::FabricEvent& event) {
  const auto* op = static_cast<const Op*>(event.op);
  if (op == nullptr) {  // no one knows which write it was: everyone who waits for one is suspect
    for (int r = 0; r < size_; ++r)
      if (r != self_ && at_peer(r).out.has_unacked()) break_path(r, endpoint_->why(event));
    return;
  }
  Peer& p = at_peer(op->peer);
  if (op->kind == Kind::kAck) p.is_ack_due = true;
  const bool is_current =
      op->kind == Kind::kPiece ? op->life == p.out.life() : op->kind == Kind::kAck;
  if (is_current) break_path(op->peer, endpoint_->why(event));
}

void RdmaLane::break_path(int rank, std::string_view why) {
  Peer& p = at_peer(rank);
  if (p.state != State::kUp) return;
  if (p.out.life() >= kMaxLife)
    return bury(rank, fmt::format("it failed {} times, at last: {}", kMaxLife + 1, why));
  p.state = State::kBroken;
  p.why = driver_error("lane {} to rank {}: {}; {} pieces outstanding", name_, rank, why,
                       p.out.posted() - p.out.acked());
  p.ask_pause_ns = kFirstAskPauseNs;
  p.ask_at_ns = now_ns() + kFirstAskPauseNs;
  log::warn("transport", "{}", p.why.message());
}

void RdmaLane::bury(int rank, std::string_view why) {
  Peer& p = at_peer(rank);
  if (p.state == State::kDead) return;
  p.state = State::kDead;
  p.why = driver_error("lane {} to rank {} is closed for good: {}", name_, rank, why);
  log::error("transport", "{}", p.why.message());
}

}  // namespace braid::transport::rdma
