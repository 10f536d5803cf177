#include "coll/host/outbox.h"

#include <mutex>

#include "base/clock.h"
#include "base/log.h"

namespace braid::coll {

using transport::PeerSet;
using transport::PutResult;

Outbox::Outbox(comm::Comm::State& state, uint64_t epoch, uint32_t cell_bytes, plan::Shares shares,
               plan::Shares node_shares)
    : state_(state),
      epoch_(epoch),
      cell_bytes_(cell_bytes),
      shares_(std::move(shares)),
      node_shares_(std::move(node_shares)),
      queues_(state.links.size()) {
  shares_.resize(state.links.size(), 0);
  for (LinkQueue& q : queues_) q.peers.resize(static_cast<size_t>(state.size()));
}

int Outbox::first_usable_link(int peer) const {
  int first = -1;
  for (size_t i = 0; i < state_.links.size(); ++i) {
    const int link = static_cast<int>(i);
    if (!usable(link) || !state_.links[i].reach.contains(peer)) continue;
    if (i >= state_.link_facts.size()) return link;
    if (first < 0) first = link;
  }
  return first;
}

plan::Shares Outbox::shares_to(PeerSet peers) const {
  const uint64_t mask = state_.reach_mask(peers) & state_.local_up_mask();
  const bool is_inside = (peers.bits() & ~state_.node_peers.bits()) == 0;
  const auto carries = [&](size_t link) {
    return node_shares_[link] > 0 && ((mask >> link) & 1) != 0;
  };
  for (size_t i = 0; is_inside && i < node_shares_.size(); ++i)
    if (carries(i)) return comm::without_links(node_shares_, mask);
  return comm::without_links(shares_, mask);
}

void Outbox::enqueue(int link, PeerSet peers, const SendRange& range) {
  LinkQueue& queue = queues_[static_cast<size_t>(link)];
  if (peers.count() > 1 && state_.links[static_cast<size_t>(link)].lane->caps().can_multicast) {
    queue.shared.push_back({peers, range});
    return;
  }
  for (; !peers.empty(); peers = peers.without(peers.first())) {
    if (range.offer && range.offered_link != link) put_offer(link, peers.first(), range);
    queue.peers[static_cast<size_t>(peers.first())].ranges.push_back(range);
  }
}

void Outbox::put_offer(int link, int peer, const SendRange& range) {
  Tag tag{epoch_, PieceKind::kOffer};
  tag.number = range.number;
  push_piece(link, peer, encode_tag(tag), encode_announcement(*range.offer));
}

// Cuts a range over the usable links by their shares: what a failed link would have carried.
void Outbox::spread(PeerSet peers, const SendRange& range) {
  if (first_usable_link(peers.first()) < 0) {
    fate_ = unavailable("no link is left to rank {}: {}", peers.first(), state_.links.back().why);
    return;
  }
  const std::vector<uint64_t> cut =
      plan::cut_cells(range.cell_end - range.cell_begin, shares_to(peers));
  for (size_t link = 0; link + 1 < cut.size(); ++link) {
    SendRange piece = range;
    piece.cell_begin = range.cell_begin + cut[link];
    piece.cell_end = range.cell_begin + cut[link + 1];
    if (piece.cell_begin < piece.cell_end) enqueue(static_cast<int>(link), peers, piece);
  }
}

void Outbox::push(int link, int peer, const SendRange& range) {
  push_all(link, PeerSet::only(peer), range);
}

void Outbox::push_all(int link, PeerSet peers, const SendRange& range) {
  if (range.cell_begin >= range.cell_end || peers.empty()) return;
  if (usable(link))
    enqueue(link, peers, range);
  else
    spread(peers, range);
}

void Outbox::push_piece(int link, int peer, const transport::PieceTag& tag,
                        std::span<const std::byte> payload) {
  queues_[static_cast<size_t>(link)].peers[static_cast<size_t>(peer)].pieces.push_back(
      {tag, std::vector<std::byte>(payload.begin(), payload.end())});
}

PutResult Outbox::put_cell(int link, PeerSet peers, const SendRange& range) {
  comm::LinkState& l = state_.links[static_cast<size_t>(link)];
  const uint64_t length = cell_length(range.cell_begin, range.data.bytes, cell_bytes_);
  const auto tag =
      encode_tag({epoch_, range.kind, range.forward, range.block, range.cell_begin, range.number});
  const PutResult result = l.lane->try_put(
      peers, tag, {range.data.data + cell_begin(range.cell_begin, cell_bytes_), length});
  if (result == PutResult::kAccepted) {
    const auto copies = static_cast<uint64_t>(l.lane->caps().can_multicast ? 1 : peers.count());
    comm::LinkUse& use = state_.report.links[static_cast<size_t>(link)];
    use.sent_bytes += length * copies;
    use.last_put_ns = now_ns();
  }
  if (result == PutResult::kDown) note_down(link);
  return result;
}

// Whether this link is all that leads to somebody, and every way on it that is down is being made
// anew.
bool Outbox::is_mending_last(int link) const {
  if (!state_.is_last_to_somebody(link)) return false;
  const transport::Lane& lane = *state_.links[static_cast<size_t>(link)].lane;
  for (int peer = 0; peer < state_.size(); ++peer)
    if (peer != state_.rank() && !lane.health(peer).ok() && !lane.is_mending(peer)) return false;
  return true;
}

// To be evacuated after the pump; what is to wait is full to the pump, for the peer that it is down
// to.
void Outbox::note_down(int link) {
  if (!is_mending_last(link)) dead_link_ = link;
}

bool Outbox::pump_pieces(int link, int peer) {
  std::deque<OwnedPiece>& pieces =
      queues_[static_cast<size_t>(link)].peers[static_cast<size_t>(peer)].pieces;
  bool any = false;
  while (!pieces.empty()) {
    const PutResult result = state_.links[static_cast<size_t>(link)].lane->try_put(
        PeerSet::only(peer), pieces.front().tag, pieces.front().payload);
    if (result == PutResult::kDown) note_down(link);
    if (result != PutResult::kAccepted) break;
    pieces.pop_front();
    any = true;
  }
  return any;
}

bool Outbox::pump_shared(int link) {
  std::deque<SharedRange>& shared = queues_[static_cast<size_t>(link)].shared;
  bool any = false;
  while (!shared.empty() &&
         put_cell(link, shared.front().peers, shared.front().range) == PutResult::kAccepted) {
    any = true;
    SendRange& range = shared.front().range;
    if (++range.cell_begin == range.cell_end) shared.pop_front();
  }
  return any;
}

bool Outbox::pump_one_cell(int link, int peer) {
  PeerQueue& queue = queues_[static_cast<size_t>(link)].peers[static_cast<size_t>(peer)];
  if (queue.ranges.empty() || !queue.pieces.empty()) return false;
  SendRange& range = queue.ranges.front();
  if (put_cell(link, PeerSet::only(peer), range) != PutResult::kAccepted) return false;
  if (++range.cell_begin == range.cell_end) queue.ranges.pop_front();
  return true;
}

// One cell for each peer that takes one, beginning with the peer whose turn it is. The turn passes
// on with every cell that is taken, over pumps: a link that takes one cell at a time would
// otherwise serve the first peer alone.
bool Outbox::pump_turns(int link) {
  const int others = state_.size() - 1;
  int& turn = queues_[static_cast<size_t>(link)].turn;
  const int first = turn;
  bool any = false;
  for (int i = 0; i < others && dead_link_ < 0; ++i) {
    const int step = (first + i) % others;
    if (!pump_one_cell(link, (state_.rank() + 1 + step) % state_.size())) continue;
    turn = (step + 1) % others;
    any = true;
  }
  return any;
}

// Entries and saved pieces first, then what goes to everyone, then peers in turn, rotated by rank:
// no two ranks start on the same peer.
bool Outbox::pump_link(int link) {
  const int n = state_.size();
  bool any = false;
  bool pieces_left = false;
  for (int step = 1; step < n; ++step) {
    const int peer = (state_.rank() + step) % n;
    any |= pump_pieces(link, peer);
    pieces_left |=
        !queues_[static_cast<size_t>(link)].peers[static_cast<size_t>(peer)].pieces.empty();
  }
  if (!pieces_left) any |= pump_shared(link);  // an entry stays ahead of the data
  while (pump_turns(link)) any = true;
  return any;
}

bool Outbox::pump() {
  bool any = false;
  for (size_t i = 0; i < queues_.size(); ++i) {
    const int link = static_cast<int>(i);
    if (!usable(link)) continue;
    any |= pump_link(link);
    if (dead_link_ < 0) continue;
    dead_link_ = -1;
    Status why;
    for (int p = 0; p < state_.size() && why.ok(); ++p)
      if (p != state_.rank()) why = state_.links[i].lane->health(p);
    evacuate(link, why.ok() ? "a put was refused" : why.message());
    any = true;
  }
  return any;
}

void Outbox::save_unacked(int link) {
  comm::LinkState& l = state_.links[static_cast<size_t>(link)];
  for (int peer = 0; peer < state_.size(); ++peer) {
    if (peer == state_.rank() || !l.reach.contains(peer)) continue;
    const int other = first_usable_link(peer);
    l.lane->for_each_unacked(peer, [&](const transport::Arrival& piece) {
      const auto tag = decode_tag(piece.tag);
      if (!tag.ok() || tag.value().epoch != epoch_)
        return;  // an older call's copy: its call ended without it
      if (other < 0) {
        fate_ = unavailable("no link is left to rank {}: {}", peer, l.why);
        return;
      }
      push_piece(other, peer, piece.tag, piece.payload);
      {
        const std::lock_guard lock(state_.health_mutex);  // health_json() may be looking at it
        ++l.resent_pieces;
      }
      ++state_.report.links[static_cast<size_t>(link)].resent_pieces;
    });
  }
}

void Outbox::evacuate(int link, const std::string& why) {
  if (!usable(link)) return;
  state_.mark_down(link, why);
  LinkQueue taken;
  taken.peers.resize(static_cast<size_t>(state_.size()));
  std::swap(taken, queues_[static_cast<size_t>(link)]);
  save_unacked(link);
  bool is_cut_off = false;
  for (int peer = 0; peer < state_.size(); ++peer) {
    if (!state_.links[static_cast<size_t>(link)].reach.contains(peer)) continue;
    const int other = first_usable_link(peer);
    is_cut_off = is_cut_off || (other < 0 && peer != state_.rank());
    PeerQueue& queue = taken.peers[static_cast<size_t>(peer)];
    for (const OwnedPiece& piece : queue.pieces) {
      if (other >= 0) push_piece(other, peer, piece.tag, piece.payload);
    }
    for (const SendRange& range : queue.ranges) spread(PeerSet::only(peer), range);
  }
  for (const SharedRange& shared : taken.shared) spread(shared.peers, shared.range);
  if (is_cut_off)
    fate_ = unavailable("link {} failed and no other is left: {}",
                        state_.links[static_cast<size_t>(link)].facts.name, why);
}

void Outbox::drop_ranges() {
  for (LinkQueue& queue : queues_) {
    queue.shared.clear();
    for (PeerQueue& peer : queue.peers) peer.ranges.clear();
  }
}

bool Outbox::empty() const {
  for (const LinkQueue& queue : queues_) {
    if (!queue.shared.empty()) return false;
    for (int peer = 0; peer < state_.size(); ++peer) {
      const PeerQueue& own = queue.peers[static_cast<size_t>(peer)];
      if (!own.ranges.empty() || (!own.pieces.empty() && !has_left(peer))) return false;
    }
  }
  return true;
}

bool Outbox::waits(int link, int peer) const {
  const LinkQueue& queue = queues_[static_cast<size_t>(link)];
  const PeerQueue& own = queue.peers[static_cast<size_t>(peer)];
  if (!own.pieces.empty() || !own.ranges.empty()) return true;
  return !queue.shared.empty() && queue.shared.front().peers.contains(peer);
}

bool Outbox::acked() const {
  for (const comm::LinkState& l : state_.links) {
    const transport::LaneCaps& caps = l.lane->caps();
    if (l.is_down || !(caps.can_lose || caps.is_paced)) continue;
    for (int peer = 0; peer < state_.size(); ++peer)
      if (peer != state_.rank() && l.lane->acked(peer) != l.lane->posted(peer) && !has_left(peer))
        return false;
  }
  return true;
}

}  // namespace braid::coll
