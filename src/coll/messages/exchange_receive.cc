// What arrives while messages are under way.
#include <cstring>

#include "base/clock.h"
#include "coll/messages/exchange.h"

namespace braid::coll {

using transport::Arrival;
using Way = Message::Way;

bool Exchange::receive() {
  bool any = false;
  for (size_t link = 0; link < state_.links.size(); ++link)
    for (int step = 1; step < state_.size(); ++step)
      any |= receive_from(static_cast<int>(link), (state_.rank() + step) % state_.size());
  return any;
}

bool Exchange::receive_from(int link, int peer) {
  transport::Lane& lane = *state_.links[static_cast<size_t>(link)].lane;
  bool any = false;
  while (lane.available(peer) > 0 && handle(lane.at(peer, 0), link, peer)) {
    lane.release(peer, 1);
    any = true;
  }
  return any;
}

bool Exchange::handle(const Arrival& arrival, int link, int peer) {
  if (!status_.ok()) return false;
  if (arrival.tag == comm::kProbeTag) return true;
  const Result<Tag> decoded = decode_tag(arrival.tag);
  if (!decoded.ok()) {
    stop(decoded.status().with_context(fmt::format(
        "link {} from rank {}", state_.links[static_cast<size_t>(link)].facts.name, peer)));
    return false;
  }
  const Tag& tag = decoded.value();
  if (tag.epoch < epoch_) return true;  // a late copy of what is over
  if (tag.epoch > epoch_) return false;
  switch (tag.kind) {
    case PieceKind::kOffer:
    case PieceKind::kWant: return on_announcement(tag, arrival.payload, peer);
    case PieceKind::kMessage: return on_cell(tag, arrival.payload, link, peer);
    case PieceKind::kArrived: return on_arrived(tag, peer);
    case PieceKind::kEntry:
    case PieceKind::kData:
    case PieceKind::kOperand: break;
  }
  on_collective(tag, arrival.payload, peer);
  return false;
}

// Also of messages that this rank has not called yet, which the peer's next pieces may be behind.
bool Exchange::on_announcement(const Tag& tag, std::span<const std::byte> payload, int peer) {
  const Way ours = tag.kind == PieceKind::kOffer ? Way::kRecv : Way::kSend;
  if (tag.number != number(peer, ours)) return tag.number < number(peer, ours);
  const auto said = decode_announcement(payload);
  if (!said.ok()) {
    stop(said.status().with_context(fmt::format("from rank {}", peer)));
    return false;
  }
  auto& known = ours == Way::kRecv ? book(peer).offer : book(peer).want;
  if (known) return true;  // a copy that came over another link
  known = said.value();
  std::deque<Open>& in_order = queue(peer, ours);
  if (!in_order.empty()) agree(peer, in_order.front(), said.value());
  return true;
}

bool Exchange::on_cell(const Tag& tag, std::span<const std::byte> payload, int link, int peer) {
  const uint64_t under_way = book(peer).num_received;
  if (tag.number != under_way) return tag.number < under_way;
  std::deque<Open>& in_order = queue(peer, Way::kRecv);
  // Its offer comes over another link.
  if (in_order.empty() || !in_order.front().is_agreed) return false;
  Open& open = in_order.front();
  const uint64_t bytes = open.message.count * dtype_bytes(open.message.dtype);
  if (tag.cell >= open.seen.size() || payload.size() != cell_length(tag.cell, bytes, cell_bytes_)) {
    stop(internal_error("{}: cell {} of {} bytes came; expected {} cells of {} bytes",
                        to_words(open.message), tag.cell, payload.size(), open.seen.size(),
                        cell_bytes_));
    return false;
  }
  if (open.seen[tag.cell]) return true;
  open.seen[tag.cell] = true;
  auto* const place = static_cast<std::byte*>(open.message.data);
  std::memcpy(place + cell_begin(tag.cell, cell_bytes_), payload.data(), payload.size());
  state_.report.links[static_cast<size_t>(link)].received_bytes += payload.size();
  open.moved_ns = now_ns();
  if (--open.cells_missing == 0) end(peer, Way::kRecv, {});
  return true;
}

bool Exchange::on_arrived(const Tag& tag, int peer) {
  const uint64_t under_way = book(peer).num_sent;
  if (tag.number != under_way) return tag.number < under_way;
  const std::deque<Open>& in_order = queue(peer, Way::kSend);
  if (in_order.empty()) {
    stop(internal_error("rank {} has message {}, which rank {} did not send", peer, tag.number,
                        state_.rank()));
    return false;
  }
  if (!in_order.front().is_agreed) return false;  // its want comes over another link
  end(peer, Way::kSend, {});
  return true;
}

// The peer is in the collective that comes next. It stays there until we enter it, too.
void Exchange::on_collective(const Tag& tag, std::span<const std::byte> payload, int peer) {
  if (tag.kind != PieceKind::kEntry) return;
  const auto owes = [&](Way way, const std::optional<comm::Announcement>& theirs) -> const Open* {
    const std::deque<Open>& in_order = queue(peer, way);
    return in_order.empty() || theirs ? nullptr : &in_order.front();
  };
  const Open* open = owes(Way::kRecv, book(peer).offer);
  if (open == nullptr) open = owes(Way::kSend, book(peer).want);
  if (open == nullptr) return;
  const Result<Entry> entry = decode_entry(payload);
  stop(invalid_argument("{}: rank {} has called {} instead", to_words(open->message), peer,
                        entry.ok() ? to_words(entry->signature) : "a collective"));
}

}  // namespace braid::coll
