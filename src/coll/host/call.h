// Call: one collective on this rank, from its entry to its last byte. It runs in the caller's
// thread and is the only thing that touches the lanes meanwhile.
//
//   begin    epoch + 1; the plan (shares that hold for this epoch); an entry piece to every peer;
//            ranges to the links' queues by the plan's cuts
//   loop     lanes progress, the outbox puts, arrivals are taken; when nothing moved: look for a
//            broken group, a passed deadline, a stalled link; then wait
//   done     every peer's entry is in, every expected cell is in its place (or reduced), the outbox
//            is empty, and lanes that can lose pieces have acknowledged theirs
//
// Why it is right:
//   - Nothing is written to the receive buffer before every peer's entry has come and agrees with
//     ours, so a mismatch leaves memory untouched on every rank; all ranks see all entries, so all
//     ranks see the mismatch.
//   - A cell is used once: a bitmap per source drops the second copy that a failed link may deliver
//     late.
//   - A piece of an older epoch is dropped, a piece of a later one (a peer is one call ahead) stays
//     in its lane.
//   - A peer cannot be two calls ahead: it needs our entry of the next call to finish that.
//
// Why it cannot hang: every loop pass ends in progress, or in a bounded wait after which the group
// and the deadline are looked at. The deadline restarts with progress, of which a call has a
// bounded amount.
//
// Over several nodes of as many ranks all_gather and sums go in two stages, inside each node and
// between them (coll/nodes/schedule.h): call_nodes.cc. Everything else, and every other way in which
// ranks lie on nodes, goes straight from rank to rank.
//
// In call_send.cc what a rank sends by itself, in call_receive.cc what arrives, in call_agree.cc
// what follows once all have entered, in call_watch.cc what ends a call that does not get on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "coll/host/inbox.h"
#include "coll/host/moves.h"
#include "coll/host/node_sums.h"
#include "coll/host/outbox.h"
#include "coll/host/reducer.h"
#include "coll/host/stall_watch.h"
#include "coll/host/waiter.h"
#include "comm/state.h"

namespace braid::coll {

/// Checks the comm, runs the moves on it, and files the report. The one way from coll/<op> to the
/// lanes.
Status run(comm::Comm& comm, const Moves& moves);
/// The comm cannot go on, for `why`: every rank is told, and every later call answers it. Answers
/// the cause, where `why` is but its first sign. Under the comm's lock.
Status end_comm(comm::Comm::State& state, Status why);
/// The end of a call for which this rank has no memory of `bytes` for blocks of its own, before it
/// has entered. The others wait for it: so the comm ends, and every rank hears why at once.
Status end_without_memory(comm::Comm& comm, const Signature& signature, uint64_t bytes);
/// Whether a call goes inside nodes first and then between them, or the other way round: sums, of
/// any size, so that their order does not hang on it, and what goes from every rank to everyone.
/// Alike on all ranks.
bool goes_in_stages(const comm::Comm::State& state, const Moves& moves);

class Call {
 public:
  Call(comm::Comm::State& state, const Moves& moves);
  Status execute();
  /// Whether execute()'s failure is one that no call can follow.
  bool ends_comm(const Status& status) const {
    return ends_comm_ || (!status.ok() && status.code() != Code::kInvalidArgument);
  }

 private:
  // Setting up.
  std::vector<std::byte> make_entry();
  void send_entries();
  void queue_moves();
  void queue_block(transport::PeerSet peers, const SendRange& range);
  void queue_root_block();
  bool carries(size_t link, int peer) const;

  // In two stages.
  bool has_stages() const { return goes_in_stages(state_, moves_); }
  void open_sums();
  void queue_staged_moves();
  void queue_staged_operands();
  uint64_t rows_of(int i) const;
  void queue_operand_rows();
  void queue_operand_row();
  void push_cell(transport::PeerSet peers, PieceKind kind, bool forward, int block, uint64_t cell,
                 ConstBlock data);
  void on_staged_operand(const Tag& tag, std::span<const std::byte> payload, const Taken& taken);
  void add(const NodeSums::Sum& sum, const Tag& tag, std::span<const std::byte> payload,
           const Taken& taken);
  void reduce_if_whole(const NodeSums::Sum& sum, uint64_t cell);
  void pass_partial_on(const NodeSums::Sum& sum, uint64_t cell);
  void pass_on(const Tag& tag);
  void share_staged(uint64_t cell);

  // Receiving.
  bool receive();
  bool receive_from(int link, int source);
  /// False: leave the piece in its lane for now.
  bool handle(const transport::Arrival& arrival, int link, int source);
  void on_entry(const transport::Arrival& arrival, int source);
  /// A peer's message that this call lies in the way of, or a late piece of an old one.
  void take_message_piece(const Tag& tag, std::span<const std::byte> payload, int source);
  void refuse_open_messages();
  void on_data(const Tag& tag, std::span<const std::byte> payload, const Taken& taken);
  void on_operand(const Tag& tag, std::span<const std::byte> payload, const Taken& taken);
  void forward(const Tag& tag, int link);
  void share_reduced(uint64_t cell, int link);
  bool is_new(std::vector<bool>& seen, uint64_t cell, int source, const Block& block,
              std::span<const std::byte> payload);
  void used(int link, size_t bytes);

  // Agreement.
  void all_entries_in();
  Status check_agreement() const;
  Status check_pairs() const;
  Status check_blocks() const;

  // What stays on this rank.
  void begin_local();
  bool copy_local();

  // Waiting.
  void progress_lanes();
  /// Whether something of the call is still to come from others, or to go to them.
  bool needs_peers() const;
  bool done() const { return local_.bytes == 0 && !needs_peers(); }
  void watch();
  void look_for_the_gone();
  transport::PeerSet left_without_entry() const;
  bool has_one_link_left() const;
  void stop(Status status);
  std::string missing() const;
  void finish_report();

  comm::Comm::State& state_;
  const Moves& moves_;
  const uint64_t epoch_;
  const int64_t start_ns_;
  plan::Plan plan_;
  uint32_t cell_bytes_;
  std::vector<std::byte> entry_bytes_;
  Outbox outbox_;
  Inbox inbox_;
  Waiter waiter_;
  StallWatch stall_watch_;
  std::optional<Reducer> reducer_;
  std::optional<NodeSums> sums_;  // in its place where there are two stages
  struct {
    int node = 0;  // of the next row, in the order of sums
    uint64_t cell = 0;
    uint64_t queued = 0;   // rows
    uint64_t reduced = 0;  // here, and those that this rank has no cell of
  } rows_;                 // of operands for this node's ranks

  std::vector<std::optional<Entry>> entries_;
  int entries_missing_;
  bool agreed_ = false;      // all entries are in and match
  bool cut_alike_ = true;    // all ranks can use the same links
  bool discarding_ = false;  // they are in and do not: drain, then answer mismatch_
  Status mismatch_;
  std::vector<std::vector<bool>> data_seen_;     // by place
  std::vector<std::vector<bool>> operand_seen_;  // by source
  uint64_t cells_missing_ = 0;
  struct {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    uint64_t bytes = 0;
  } local_;  // still to be copied
  int64_t last_progress_ns_;
  Status status_;           // not ok: the call is over
  bool ends_comm_ = false;  // although status_ is an invalid argument
};

}  // namespace braid::coll
