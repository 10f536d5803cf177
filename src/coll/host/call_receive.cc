// What arrives: entries, cells of data, operands.
#include <cstring>

#include "base/clock.h"
#include "coll/host/call.h"
#include "coll/host/chain.h"

namespace braid::coll {

using transport::Arrival;
using transport::PeerSet;

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
  if (tag.epoch == epoch_ && tag.kind != PieceKind::kEntry && !is_of_message(tag.kind) &&
      !agreed_ && !discarding_)
    return false;
  const Taken taken = inbox_.take(link, source);
  if (tag.epoch == epoch_ && is_of_message(tag.kind)) {
    take_message_piece(tag, arrival.payload, source);
    inbox_.finish(taken);
  } else if (tag.epoch < epoch_ || (discarding_ && tag.kind != PieceKind::kEntry)) {
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

// Why this is an error, and no other piece is: coll/messages/exchange.h.
void Call::take_message_piece(const Tag& tag, std::span<const std::byte> payload, int source) {
  if (tag.kind != PieceKind::kOffer && tag.kind != PieceKind::kWant) return;
  const Result<comm::Announcement> said = decode_announcement(payload);
  if (!said.ok()) return stop(said.status().with_context(fmt::format("from rank {}", source)));
  state_.messages.resize(static_cast<size_t>(state_.size()));
  comm::PeerMessages& known = state_.messages[static_cast<size_t>(source)];
  const bool is_offer = tag.kind == PieceKind::kOffer;
  if (tag.number < (is_offer ? known.num_received : known.num_sent)) return;
  (is_offer ? known.offer : known.want) = said.value();
  refuse_open_messages();
}

void Call::refuse_open_messages() {
  for (size_t peer = 0; peer < state_.messages.size(); ++peer) {
    const comm::PeerMessages& known = state_.messages[peer];
    if (!known.offer && !known.want) continue;
    ends_comm_ = true;
    stop(invalid_argument("call {}: rank {} called {}, rank {} called {} of {} {} rank {} instead",
                          epoch_, state_.rank(), to_words(moves_.signature), peer,
                          known.offer ? "send" : "recv",
                          to_words(known.offer ? *known.offer : *known.want),
                          known.offer ? "to" : "from", state_.rank()));
    return;
  }
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
    if (tag.forward && has_stages()) {
      pass_on(tag);
    } else if (tag.forward) {
      forward(tag, taken.link);
    }
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
  if (sums_) return on_staged_operand(tag, payload, taken);
  const auto source = static_cast<size_t>(taken.source);
  if (!reducer_ ||
      !is_new(operand_seen_[source], tag.cell, taken.source, moves_.reduced, payload)) {
    inbox_.finish(taken);
    return;
  }
  used(taken.link, payload.size());
  // A held slot is not acknowledged: never more than half of the depth, so that the sender has
  // slots to go on with. All operands of a cell come over one link where all ranks cut alike, so a
  // link that stops holds up no other; where they do not, links would wait for each other.
  const uint32_t depth = state_.links[static_cast<size_t>(taken.link)].lane->caps().depth_pieces;
  const bool may_hold = cut_alike_ && inbox_.held(taken.link, taken.source) <= depth / 2;
  if (may_hold) {
    reducer_->add_view(tag.cell, taken.source, payload.data(), taken);
  } else {
    reducer_->add_copy(tag.cell, taken.source, payload);
    inbox_.finish(taken);
  }
  if (!reducer_->try_reduce(tag.cell)) return;
  for (const Taken& held : reducer_->held()) inbox_.finish(held);
  --cells_missing_;
  if (!moves_.reduced_for.empty()) share_reduced(tag.cell, taken.link);
}

void Call::share_reduced(uint64_t cell, int link) {
  const auto me = static_cast<uint16_t>(state_.rank());
  outbox_.push_all(
      link, moves_.reduced_for,
      {PieceKind::kData, false, me, cell, cell + 1, {moves_.reduced.data, moves_.reduced.bytes}});
}

}  // namespace braid::coll
