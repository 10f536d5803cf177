// RdmaLane, the writing half: what is due is posted, and what the library does not take now stays
// due.
#include <algorithm>

#include "transport/rdma/lane.h"

namespace braid::transport::rdma {

namespace {
// A peer that released nothing for so long is asked whether it has everything; asking costs 56
// bytes.
constexpr int64_t kProbeAfterNs = 500'000'000;
constexpr int64_t kMaxAskPauseNs = 1'000'000'000;
// An ack is on its way alone, so that many releases become one ack; but a library that never
// completes it (provider shm does that) must not silence us.
constexpr int64_t kAckPatienceNs = 10'000'000;
// Ops whose completion never came are not reused, so their number must have a bound.
constexpr size_t kMaxOps = 1 << 16;
}  // namespace

RdmaLane::Op* RdmaLane::take_op() {
  if (free_ops_.empty()) {
    if (ops_.size() >= kMaxOps) return nullptr;
    return &ops_.emplace_back();
  }
  Op* op = free_ops_.back();
  free_ops_.pop_back();
  return op;
}

// On shm a confirmed write that is refused, as one into an old ring is, never completes, and every
// later one is "busy" for ever; unconfirmed ones complete.
bool RdmaLane::post(int rank, Kind kind, sys::FabricTransfer write, uint32_t life) {
  Op* op = take_op();
  if (op == nullptr) return false;
  op->peer = rank;
  op->kind = kind;
  op->life = life;
  write.peer = at_peer(rank).fabric_peer;
  write.local_region = source_region_;
  write.wants_delivery = write.wants_delivery && provider_ != "shm";
  const Result<bool> posted = endpoint_->write(write, op);
  if (posted.ok() && posted.value()) {
    ++num_flying_;
    return true;
  }
  give_op(op);
  if (!posted.ok()) break_path(rank, posted.status().message());
  return false;
}

bool RdmaLane::post_to_block(int rank, Kind kind, size_t offset, size_t bytes, uint32_t life,
                             uint64_t sequence) {
  sys::FabricTransfer write;
  write.local = reinterpret_cast<std::byte*>(&control_out(rank)) + offset;
  write.bytes = bytes;
  write.remote_address = at_peer(rank).control.address + offset;
  write.remote_key = at_peer(rank).control.key;
  write.immediate = pack({kind, self_, life, sequence});
  // Lost ones are repeated, so the extra message that confirms them is saved.
  write.wants_delivery = false;
  return post(rank, kind, write, life);
}

bool RdmaLane::post_pieces(int rank) {
  Peer& p = at_peer(rank);
  bool changed = false;
  while (p.state == State::kUp && p.out.has_unwritten() &&
         post(rank, Kind::kPiece, p.out.next_write(), p.out.life())) {
    p.out.wrote();
    changed = true;
    if (p.ask_at_ns == INT64_MAX) {
      p.ask_pause_ns = kProbeAfterNs;
      p.ask_at_ns = now_ns() + kProbeAfterNs;
    }
  }
  return changed;
}

bool RdmaLane::post_ack(int rank) {
  Peer& p = at_peer(rank);
  if (!p.is_ack_due || p.state != State::kUp) return false;
  if (p.ack_flies_since_ns != 0 && now_ns() - p.ack_flies_since_ns < kAckPatienceNs) return false;
  const uint64_t released = p.in.released();
  const size_t which = p.num_acks % kAckRecords;
  AckRecord ack{released};
  seal(ack, p.nonce);
  control_out(rank).acks[which] = ack;
  if (!post_to_block(rank, Kind::kAck, offsetof(ControlBlock, acks) + which * sizeof ack,
                     sizeof ack, p.in.life(), released))
    return false;
  ++p.num_acks;
  p.is_ack_due = false;
  p.ack_flies_since_ns = now_ns();
  return true;
}

bool RdmaLane::post_answer(int rank) {
  Peer& p = at_peer(rank);
  if (!p.is_answer_due) return false;
  ControlLine line;
  line.is_answer = 1;
  line.life = p.in.life();
  line.number = p.last_ask;
  line.arrived = p.in.arrived();
  line.released = p.in.released();
  line.ring_address = p.in.ring_address();
  line.ring_key = p.in.ring_key();
  seal(line, p.nonce);
  control_out(rank).answer = line;
  p.is_answer_due = !post_to_block(rank, Kind::kAnswer, offsetof(ControlBlock, answer), sizeof line,
                                   line.life, 0);
  return !p.is_answer_due;
}

bool RdmaLane::post_ask(int rank) {
  Peer& p = at_peer(rank);
  if (p.ask_at_ns == INT64_MAX || p.state == State::kDead) return false;
  const int64_t now = now_ns();
  if (now < p.ask_at_ns) return false;
  if (p.state == State::kUp && !p.out.has_unacked()) {
    p.ask_at_ns = INT64_MAX;
    return false;
  }
  p.ask_at_ns = now + p.ask_pause_ns;
  p.ask_pause_ns = std::min(2 * p.ask_pause_ns, kMaxAskPauseNs);
  ControlLine line;
  line.life = wanted_life(p);
  line.number = ++p.num_asks;
  seal(line, p.nonce);
  control_out(rank).ask = line;
  return post_to_block(rank, Kind::kAsk, offsetof(ControlBlock, ask), sizeof line, line.life, 0);
}

bool RdmaLane::post_due(int rank) {
  const bool acked = post_ack(rank), answered = post_answer(rank), asked = post_ask(rank);
  return post_pieces(rank) || acked || answered || asked;
}

}  // namespace braid::transport::rdma
