// What a rank sends by itself: its entry, and its blocks, cut over the links.
#include "coll/host/call.h"
#include "coll/host/chain.h"

namespace braid::coll {

using transport::PeerSet;

std::vector<std::byte> Call::make_entry() {
  Entry entry;
  entry.signature = moves_.signature;
  entry.send_counts = moves_.send_counts;
  entry.recv_counts = moves_.recv_counts;
  entry.up_mask = state_.local_up_mask();
  if (state_.report_is_fresh) {
    entry.report_epoch = state_.report.epoch;
    // Shares are moved between the links that plans are made of.
    for (size_t i = 0; i < state_.link_facts.size() && i < state_.report.links.size(); ++i)
      entry.report.push_back(
          {state_.report.links[i].received_bytes, state_.report.links[i].finish_ns});
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
  const auto tag = encode_tag({epoch_, PieceKind::kEntry});
  for (int step = 1; step < state_.size(); ++step) {
    const int peer = (state_.rank() + step) % state_.size();
    const int first = outbox_.first_usable_link(peer);
    if (first < 0) return stop(unavailable("no usable link: {}", state_.links.back().why));
    for (size_t i = 0; i < state_.links.size(); ++i) {
      const int link = static_cast<int>(i);
      if (outbox_.usable(link) && (link == first || carries(i, peer)))
        outbox_.push_piece(link, peer, tag, entry_bytes_);
    }
  }
}

// Whether cells of this call go to `peer` over the link. Those of a call without stages keep to the
// links that lead to everyone.
bool Call::carries(size_t link, int peer) const {
  if (has_stages() && state_.node_peers.contains(peer))
    return outbox_.shares_to(PeerSet::only(peer))[link] > 0;
  return link < plan_.shares.size() && plan_.shares[link] > 0;
}

void Call::queue_block(PeerSet peers, const SendRange& range) {
  const plan::Shares shares = has_stages() ? outbox_.shares_to(peers) : plan_.shares;
  const std::vector<uint64_t> cut =
      plan::cut_cells(num_cells(range.data.bytes, cell_bytes_), shares);
  for (size_t link = 0; link + 1 < cut.size(); ++link) {
    SendRange piece = range;
    piece.cell_begin = cut[link];
    piece.cell_end = cut[link + 1];
    outbox_.push_all(static_cast<int>(link), peers, piece);
  }
}

// Broadcast. A multicast link carries the root's bytes once; see host/chain.h for the others.
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
  if (has_stages()) return queue_staged_moves();
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

}  // namespace braid::coll
