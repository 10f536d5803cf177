// Outbox: what this rank still has to put in the current call, per link and peer, and the way out
// when a link fails.
//
// Two kinds of work: owned pieces (entries, and pieces saved from a dead link), which go first, and
// ranges of cells, whose bytes stay in the user's buffer until their turn. A range for everyone is
// one queue on a multicast lane and one queue per peer elsewhere, so that a slow peer holds up
// nobody but itself.
//
// When a link fails (evacuate): its queued ranges are cut over the links that are left, by their
// shares, and every piece that it posted and nobody acknowledged is put again elsewhere. The failed
// link may still deliver its copy, later or much later: receivers drop what they have already, by
// (epoch, kind, block, cell).
//
// A link that alone leads to somebody is not given up while its lane makes the way anew: everything
// stays where it is, and the call's deadline speaks if it does not come back.
//
// Threads: the comm's lock. Lives for one call.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "coll/host/moves.h"
#include "coll/wire.h"
#include "comm/state.h"
#include "transport/lane.h"

namespace braid::coll {

/// Cells [cell_begin, cell_end) of one block.
struct SendRange {
  PieceKind kind = PieceKind::kData;
  bool forward = false;
  uint16_t block = 0;
  uint64_t cell_begin = 0;
  uint64_t cell_end = 0;
  ConstBlock data;
  uint64_t number = 0;  // of a message
  // Of a message: said on a link before its first cells there. They wait in the receiver's lane for
  // the offer, and so would wait for ever where the link that had it is lost.
  std::optional<comm::Announcement> offer = {};
  int offered_link = -1;  // where it was said already
};

class Outbox {
 public:
  /// `shares` are those of links to every rank; `node_shares`, over all links, those for peers on
  /// this rank's node where it has links of its own, else empty.
  Outbox(comm::Comm::State& state, uint64_t epoch, uint32_t cell_bytes, plan::Shares shares,
         plan::Shares node_shares = {});

  /// Queues a range for one peer, or for every peer of a set, on `link` (or on what is left when it
  /// is down).
  void push(int link, int peer, const SendRange& range);
  void push_all(int link, transport::PeerSet peers, const SendRange& range);
  /// Queues an owned piece for one peer on `link`, before all ranges.
  void push_piece(int link, int peer, const transport::PieceTag& tag,
                  std::span<const std::byte> payload);

  /// Puts what the lanes take now; true when anything was put. A lane found dead is evacuated.
  bool pump();
  bool empty() const;
  /// True when every piece on a lane that can lose pieces is acknowledged; links that are down do not
  /// count, nor ranks that have left: those had ended their part before, and their last acks may have
  /// gone with them.
  bool acked() const;
  /// Gives up on a link for this call. Pieces that no link is left for make fate() fail.
  void evacuate(int link, const std::string& why);
  /// Forgets all ranges (the call has failed); owned pieces stay queued, peers need our entry.
  void drop_ranges();
  /// True when something for `peer` is queued on `link` and was not taken by the lane yet.
  bool waits(int link, int peer) const;
  /// ok, or unavailable: no link is left to a peer.
  const Status& fate() const { return fate_; }

  /// The link that owned pieces to `peer` should take: usable, one of the node's own where there
  /// is, in the fabric's order; -1 when none is.
  int first_usable_link(int peer) const;
  /// How what goes to `peers`, all of them on this rank's node or none, is cut over the links that
  /// lead there and are usable.
  plan::Shares shares_to(transport::PeerSet peers) const;
  bool usable(int link) const { return !state_.links[static_cast<size_t>(link)].is_down; }

 private:
  struct OwnedPiece {
    transport::PieceTag tag;
    std::vector<std::byte> payload;
  };
  struct PeerQueue {
    std::deque<OwnedPiece> pieces;
    std::deque<SendRange> ranges;
  };
  struct SharedRange {
    transport::PeerSet peers;
    SendRange range;
  };
  struct LinkQueue {
    std::vector<PeerQueue> peers;
    std::deque<SharedRange> shared;  // multicast
    int turn = 0;                    // the peer to serve next, counted from the one after us
  };

  bool pump_link(int link);
  bool pump_pieces(int link, int peer);
  bool pump_shared(int link);
  bool pump_turns(int link);
  bool pump_one_cell(int link, int peer);
  bool has_left(int peer) const { return state_.group && state_.group->has_left(peer); }
  bool is_mending_last(int link) const;
  void note_down(int link);
  transport::PutResult put_cell(int link, transport::PeerSet peers, const SendRange& range);
  void spread(transport::PeerSet peers, const SendRange& range);
  void put_offer(int link, int peer, const SendRange& range);
  void enqueue(int link, transport::PeerSet peers, const SendRange& range);
  void save_unacked(int link);

  comm::Comm::State& state_;
  uint64_t epoch_;
  uint32_t cell_bytes_;
  plan::Shares shares_;
  plan::Shares node_shares_;
  std::vector<LinkQueue> queues_;
  int dead_link_ = -1;  // a put answered kDown: evacuate after the pump, not while iterating
  Status fate_;
};

}  // namespace braid::coll
