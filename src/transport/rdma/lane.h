// RdmaLane: a lane over one endpoint of a fabric. One-sided writes into rings, acknowledged by the
// receiver.
//
// THE PROTOCOL. Every rank owns, for each peer, a ring of `depth` slots in registered memory that
// this peer alone writes (inbox.h), and a control block. Nobody's own buffers are ever a target.
//
//   sender                                             receiver
//   try_put: payload and header into the transmit
//   slot of the sequence (kept until acked)
//   write slot -> ring, immediate {piece, life, seq} ->  checks window and header, marks the
//                                                      sequence as here; shown to the caller when
//                                                      all before it are here
//   acked() = n    <-- ack record, immediate {ack, n} -- released n, told at the next progress()
//
// Assumed of the fabric: a write that lands is whole when its immediate is seen, and writes land at
// most once. Order is NOT assumed: the sequence restores it; an ack is cumulative, and the last few
// lie beside each other, so acks may overtake each other. Memory is not polled: an immediate tells
// where to look (on tcp the target's queue must be read anyway).
//
// STRANGERS. Who reaches a listening endpoint can send it immediates, without a key. None is
// believed: it makes us look at what lies under our keys, sealed with nonces that the peers alone
// were told (wire.h), and what that does not bear out is dropped and counted. So a stranger can
// neither show a piece, nor free a slot, nor ask for a ring.
//
// Why it cannot tear or overwrite: slot s+depth may be written only after the sender knows that s
// was released, and s can be released only after its one write has landed. A second write of the
// same slot is never made in one life.
//
// FAILURE. A failed write breaks the path to that peer: health() says why, try_put() answers kDown,
// pieces stay readable. Other peers go on. From then on the sender asks, again and again with
// growing pauses, for a new life:
//
//   up       a write failed, or pieces are lost      --> broken
//   broken   the sender asks for life + 1            --> the receiver lays a NEW ring and answers
//                                                        {life + 1, arrived, key}
//   broken   the answer                              --> up; the sender writes everything from
//                                                        `arrived` on into the new ring
//
// Zombies, writes of the old life that some queue still holds, land in the old ring, whose memory
// is never used again (so they cannot tear a piece), and their immediates carry the old life (so
// they mark nothing). Asks and answers are idempotent, summed, and may be lost, repeated or torn.
// 16 lives (wire.h), then the path is dead.
//
// LOSS. Some providers report success for writes that never landed. When no ack came for
// kProbeAfterNs the sender asks in the CURRENT life; the answer repeats the ack (which may have
// been lost), and when it shows for kLostAfterNs that pieces are missing which were written, the
// path is declared broken and renewed as above. A link that is cut and comes back within the
// patience of TCP needs none of this: pieces stay unacked, then arrive.
//
// Why it cannot hang: nothing here waits. A dead peer leaves pieces unacked; who waits above has a
// deadline.
//
// Threads: one at a time, as for every Lane.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/connect.h"
#include "transport/rdma/inbox.h"
#include "transport/rdma/outbox.h"

namespace braid::transport::rdma {

/// What one rank tells another so that it can be written to.
struct RemoteEndpoint {
  RemoteRing ring;
  RemoteRing control;
  uint64_t nonce = 0;  // with which the other seals what it writes
};

class RdmaLane final : public Lane {
 public:
  static Result<std::unique_ptr<RdmaLane>> open(sys::FabricLibrary& library,
                                                const RdmaLaneOptions& options, int self, int size);
  ~RdmaLane() override;

  // Connecting: tell everyone endpoint_name() and remote_endpoint_for(them), then meet() everyone.
  const std::string& endpoint_name() const { return endpoint_->name(); }
  RemoteEndpoint remote_endpoint_for(int peer) const;
  Status meet(int peer, const std::string& endpoint_name, const RemoteEndpoint& remote);
  /// Progresses until every peer was heard and everything said was sent; timeout names who was
  /// silent.
  Status greet(Deadline deadline);

  const LaneCaps& caps() const override { return caps_; }
  const std::string& name() const override { return name_; }
  PutResult try_put(PeerSet peers, const PieceTag& tag,
                    std::span<const std::byte> payload) override;
  uint32_t available(int src) const override {
    return src == self_ ? 0 : at_peer(src).in.available();
  }
  Arrival at(int src, uint32_t i) const override { return at_peer(src).in.at(i); }
  void release(int src, uint32_t count) override;
  uint64_t posted(int peer) const override { return at_peer(peer).out.posted(); }
  uint64_t acked(int peer) const override { return at_peer(peer).out.acked(); }
  void for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const override;
  bool progress() override;
  int64_t next_event_ns() const override;
  Status health(int peer) const override;
  bool is_mending(int peer) const override {
    return peer != self_ && at_peer(peer).state == State::kBroken;
  }

  /// How often the path to `peer` was renewed after a failure.
  uint32_t life(int peer) const { return at_peer(peer).out.life(); }
  /// Immediates that no member can have sent.
  uint64_t num_unfounded() const { return num_unfounded_; }

 private:
  enum class State { kUp, kBroken, kDead };

  struct Op : sys::FabricOp {
    int peer = 0;
    Kind kind = Kind::kPiece;
    uint32_t life = 0;
  };

  struct Peer {
    Peer(Outbox outbox, Inbox inbox) : out(outbox), in(std::move(inbox)) {}

    Outbox out;
    Inbox in;
    const sys::FabricRegion* control_region = nullptr;  // our block that this peer writes
    uint64_t fabric_peer = 0;
    RemoteRing control;  // the peer's block that we write
    uint64_t nonce = 0;  // with which we seal what we write
    State state = State::kUp;
    Status why;
    bool was_heard = false;
    // Acks that we owe.
    bool is_ack_due = false;
    uint64_t num_acks = 0;
    int64_t ack_flies_since_ns = 0;  // 0: no ack is on its way
    // Asking and answering.
    uint64_t num_asks = 0;     // of ours
    uint64_t last_answer = 0;  // to which of them
    uint64_t last_ask = 0;     // of the peer
    bool is_answer_due = false;
    int64_t ask_at_ns = INT64_MAX;
    int64_t ask_pause_ns = 0;
    uint64_t missing_from = UINT64_MAX;  // what the last answer lacked, and since when it does
    int64_t missing_since_ns = 0;
  };

  RdmaLane(const RdmaLaneOptions& options, int self, int size);
  Status allocate();
  Peer& at_peer(int rank) const { return *peers_[rank]; }
  ControlBlock& control_in(int peer) const;   // what `peer` wrote to us
  ControlBlock& control_out(int peer) const;  // staging: what we write to `peer`
  uint32_t wanted_life(const Peer& p) const {
    return p.out.life() + (p.state == State::kBroken ? 1 : 0);
  }

  // Posting. Each answers whether anything was posted.
  bool post(int rank, Kind kind, sys::FabricTransfer write, uint32_t life);
  bool post_to_block(int rank, Kind kind, size_t offset, size_t bytes, uint32_t life,
                     uint64_t sequence);
  bool post_pieces(int rank);
  bool post_ack(int rank);
  bool post_answer(int rank);
  bool post_ask(int rank);
  bool post_due(int rank);

  // Events.
  bool drain();
  void on_event(const sys::FabricEvent& event);
  void on_arrived(const Immediate& immediate);
  void on_piece(const Immediate& immediate);
  void on_ack(const Immediate& immediate);
  void on_ask(const Immediate& immediate);
  void on_answer(const Immediate& immediate);
  void on_failed(const sys::FabricEvent& event);
  void note_missing(int rank, uint64_t arrived);
  void renewed(int rank, const ControlLine& line);
  void moved(Peer& p);
  /// A line that the peer wrote, when it is newer than number `last`.
  std::optional<ControlLine> newer_line(int rank, bool is_answer, uint64_t last) const;
  void note_unfounded(const Immediate& immediate);
  void break_path(int rank, std::string_view why);
  void bury(int rank, std::string_view why);

  Op* take_op();
  void give_op(Op* op) { free_ops_.push_back(op); }
  void linger();
  std::string silent_peers() const;

  LaneCaps caps_;
  std::string name_;
  std::string provider_;
  int self_;
  int size_;
  RingShape shape_;
  // Memory outlives the endpoint, which may write until it is closed; the destructor closes it
  // first.
  sys::Pages source_;   // transmit slots of all peers, then one ControlBlock per peer
  sys::Pages control_;  // one ControlBlock per peer, a region each
  std::deque<Op> ops_;
  std::vector<Op*> free_ops_;
  std::vector<std::unique_ptr<Peer>> peers_;  // null at self_
  std::unique_ptr<sys::FabricDomain> domain_;
  std::unique_ptr<sys::FabricEndpoint> endpoint_;
  const sys::FabricRegion* source_region_ = nullptr;
  std::array<sys::FabricEvent, 32> events_;  // of one poll
  int64_t last_active_ns_ = 0;
  uint64_t num_flying_ = 0;
  uint64_t num_unfounded_ = 0;
};

/// connect_rdma() on a given library; tests give a fake one.
Result<std::unique_ptr<RdmaLane>> connect(sys::FabricLibrary& library, group::Group& group,
                                          const RdmaLaneOptions& options, Deadline deadline);

}  // namespace braid::transport::rdma
