#include "moe/host/proxy.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace braid::moe {

namespace {

// Tags of pieces: what it is, and of a signal its line, its number and whose window it is for.
constexpr uint64_t kStream = 0x6d6f6501, kSignalPiece = 0x6d6f6502, kFarewellPiece = 0x6d6f6503;
constexpr uint64_t kBlockBytes = 256 << 10;
constexpr int64_t kFarewellNs = 1'000'000'000;
constexpr int64_t kLongestFarewellNs = 5'000'000'000;
// Passes without work before the thread sleeps; with more threads than cores, where every pass is
// taken from somebody who has work.
constexpr int kIdleYields = 200, kIdleYieldsOversubscribed = 4;

}  // namespace

Proxy::Proxy(std::unique_ptr<transport::Lane> lane, const WindowLayout& layout,
             Neighbours neighbours, int rank)
    : layout_(layout),
      neighbours_(std::move(neighbours)),
      rank_(rank),
      lane_(std::move(lane)),
      open_(static_cast<size_t>(layout.num_ranks)),
      carried_bytes_(static_cast<size_t>(layout.num_ranks)),
      readers_(static_cast<size_t>(layout.num_ranks)),
      outgoing_(static_cast<size_t>(layout.num_ranks)),
      health_(static_cast<size_t>(layout.num_ranks)),
      thread_([this] { run(); }) {}

Proxy::~Proxy() {
  for (int peer = 0; peer < layout_.num_ranks; ++peer) {
    if (!is_reached(peer)) continue;
    open_[static_cast<size_t>(peer)].parcel.ending = Ending::kFarewell;
    send(peer);
  }
  is_ending_.store(true, std::memory_order_relaxed);
  has_work_.notify_one();
  thread_.join();
}

bool Proxy::is_reached(int peer) const {
  const fabric::NodeMap& nodes = neighbours_.nodes;
  if (nodes.has_stages()) return !nodes.share_node(peer, rank_) && nodes.share_rail(peer, rank_);
  return peer != rank_ && neighbours_.windows[static_cast<size_t>(peer)] == nullptr;
}

int Proxy::way_to(int peer) const {
  const fabric::NodeMap& nodes = neighbours_.nodes;
  return nodes.has_stages() ? nodes.rank_at(nodes.node_of(peer), nodes.local_of(rank_)) : peer;
}

// A record's head and its bytes lie in one block, so that it can be filled, and can grow.
std::byte* Proxy::add_record(int way, std::span<const Windows::Place> places, uint64_t bytes) {
  const uint64_t head = sizeof(StreamRecord) + places.size() * sizeof(StreamPlace);
  Open& open = open_[static_cast<size_t>(way)];
  if (!open.parcel.blocks.empty() &&
      open.parcel.blocks.back().used + head + bytes > open.parcel.blocks.back().bytes)
    send(way);
  if (open.parcel.blocks.empty()) {
    const uint64_t room = std::max(head + bytes, kBlockBytes);
    open.parcel.blocks.push_back({std::make_unique_for_overwrite<std::byte[]>(room), 0, room});
  }
  Block& block = open.parcel.blocks.back();
  std::byte* const record = block.data.get() + block.used;
  const StreamRecord said{bytes, places.size()};
  std::memcpy(record, &said, sizeof said);
  for (size_t i = 0; i < places.size(); ++i) {
    const StreamPlace place{static_cast<uint64_t>(places[i].peer), places[i].offset};
    std::memcpy(record + sizeof said + i * sizeof place, &place, sizeof place);
  }
  block.used += head + bytes;
  carried_bytes_[static_cast<size_t>(way)] += head + bytes;
  open.record = places.size() == 1 ? record : nullptr;
  open.peer = places[0].peer;
  open.next_offset = places[0].offset + bytes;
  return record + head;
}

std::byte* Proxy::room(int peer, uint64_t offset, uint64_t bytes) {
  const int way = way_to(peer);
  Open& open = open_[static_cast<size_t>(way)];
  if (open.record != nullptr && open.peer == peer && open.next_offset == offset) {
    Block& block = open.parcel.blocks.back();
    if (block.used + bytes <= block.bytes) {
      StreamRecord said;
      std::memcpy(&said, open.record, sizeof said);
      said.bytes += bytes;
      std::memcpy(open.record, &said, sizeof said);
      block.used += bytes;
      carried_bytes_[static_cast<size_t>(way)] += bytes;
      open.next_offset += bytes;
      return block.data.get() + block.used - bytes;
    }
  }
  const Windows::Place place{peer, offset};
  return add_record(way, {&place, 1}, bytes);
}

void Proxy::put(std::span<const Windows::Place> places, std::span<const std::byte> bytes) {
  std::byte* const to = places.size() == 1
                            ? room(places[0].peer, places[0].offset, bytes.size())
                            : add_record(way_to(places[0].peer), places, bytes.size());
  std::memcpy(to, bytes.data(), bytes.size());
}

void Proxy::signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number) {
  const int way = way_to(peer);
  carried_bytes_[static_cast<size_t>(way)] += kLineBytes;
  if (is_ack_line(rank_, line)) {
    {
      const std::lock_guard lock(mutex_);
      outgoing_[static_cast<size_t>(way)].acks.push_back({peer, line, number});
    }
    has_work_.notify_one();
    return;
  }
  Parcel& parcel = open_[static_cast<size_t>(way)].parcel;
  parcel.ending = Ending::kSignal;
  parcel.target = peer;
  parcel.line = line;
  std::copy(words.begin(), words.end(), parcel.words.begin());
  parcel.num_words = words.size();
  parcel.number = number;
  send(way);
}

void Proxy::send(int way) {
  Open& open = open_[static_cast<size_t>(way)];
  {
    const std::lock_guard lock(mutex_);
    outgoing_[static_cast<size_t>(way)].parcels.push_back(std::move(open.parcel));
  }
  has_work_.notify_one();
  open = {};
}

Status Proxy::health(int peer) const {
  const std::lock_guard lock(mutex_);
  return health_[static_cast<size_t>(way_to(peer))];
}

void Proxy::fail(int peer, const Status& why) {
  const std::lock_guard lock(mutex_);
  Status& health = health_[static_cast<size_t>(peer)];
  if (health.ok()) health = why.with_context(fmt::format("moe: way to rank {}", peer));
  outgoing_[static_cast<size_t>(peer)].acks.clear();
  outgoing_[static_cast<size_t>(peer)].parcels.clear();
}

void Proxy::run() {
  const int most_idle = neighbours_.is_oversubscribed ? kIdleYieldsOversubscribed : kIdleYields;
  int idle = 0;
  int64_t ends_ns = 0;
  for (;;) {
    bool moved = lane_->progress();
    for (int peer = 0; peer < layout_.num_ranks; ++peer)
      if (peer != rank_) moved = put_some(peer) || moved;
    moved = land_all() || moved;
    if (is_ending_.load(std::memory_order_relaxed) && is_finished(ends_ns)) return;
    idle = moved ? 0 : idle + 1;
    if (idle < most_idle) {
      if (!moved) sched_yield();
      continue;
    }
    std::unique_lock lock(mutex_);
    has_work_.wait_for(lock, std::chrono::microseconds(100));
  }
}

// A way that is being made anew has nobody at its other end where the group is broken.
bool Proxy::has_parcels() {
  const bool are_over = neighbours_.are_over();
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < layout_.num_ranks; ++peer) {
    const Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
    if (outgoing.acks.empty() && outgoing.parcels.empty()) continue;
    if (!are_over || lane_->health(peer).ok()) return true;
  }
  return false;
}

// What others still send through this rank is for ranks that may wait for it; and some lanes should not
// be closed while anything comes in.
bool Proxy::is_finished(int64_t& ends_ns) {
  const bool hands_on = neighbours_.nodes.has_stages();
  if (ends_ns == 0) ends_ns = now_ns() + (hands_on ? kLongestFarewellNs : kFarewellNs);
  if (now_ns() > ends_ns) return true;
  if (has_parcels()) return false;
  if (neighbours_.are_over()) return true;
  for (int peer = 0; peer < layout_.num_ranks; ++peer) {
    if (!is_reached(peer) || is_cut(peer)) continue;
    const bool is_lost = !lane_->health(peer).ok() && !lane_->is_mending(peer);
    if ((farewells_ >> peer & 1) == 0 && !is_lost) return false;
  }
  return true;
}

bool Proxy::put_acks(int peer) {
  const std::lock_guard lock(mutex_);
  std::deque<AckLine>& acks = outgoing_[static_cast<size_t>(peer)].acks;
  bool moved = false;
  while (!acks.empty()) {
    const AckLine& ack = acks.front();
    const transport::PieceTag tag{
        {kSignalPiece, ack.line, ack.number, static_cast<uint64_t>(ack.target)}};
    if (lane_->try_put(transport::PeerSet::only(peer), tag, {}) != transport::PutResult::kAccepted)
      break;
    acks.pop_front();
    moved = true;
  }
  return moved;
}

// The first parcel stays where it is while it is put: a deque does not move what lies in it.
bool Proxy::put_some(int peer) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  Parcel* parcel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (is_cut(peer)) {
      outgoing.acks.clear();
      outgoing.parcels.clear();
    }
    if (outgoing.parcels.empty()) outgoing.block = outgoing.done = 0;
    if (outgoing.parcels.empty() && outgoing.acks.empty()) return false;
    if (!outgoing.parcels.empty()) parcel = &outgoing.parcels.front();
  }
  if (const Status health = lane_->health(peer); !health.ok()) {
    if (lane_->is_mending(peer)) return false;
    fail(peer, health);
    return true;
  }
  bool moved = put_acks(peer), is_over = parcel == nullptr;
  if (is_over) return moved;
  while (!is_over && put_piece(peer, *parcel, is_over)) moved = true;
  if (is_over) {
    const std::lock_guard lock(mutex_);
    outgoing.parcels.pop_front();
    outgoing.block = outgoing.done = 0;
  }
  return moved;
}

bool Proxy::put_piece(int peer, Parcel& parcel, bool& is_over) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  const auto to = transport::PeerSet::only(peer);
  const auto try_put = [&](const transport::PieceTag& tag, std::span<const std::byte> payload) {
    return lane_->try_put(to, tag, payload) == transport::PutResult::kAccepted;
  };
  if (outgoing.block == parcel.blocks.size()) {
    switch (parcel.ending) {
      case Ending::kNone: is_over = true; break;
      case Ending::kFarewell: is_over = try_put({{kFarewellPiece, 0, 0, 0}}, {}); break;
      case Ending::kSignal:
        is_over = try_put(
            {{kSignalPiece, parcel.line, parcel.number, static_cast<uint64_t>(parcel.target)}},
            std::span(parcel.words).first(parcel.num_words));
        break;
    }
    return is_over;
  }
  const Block& block = parcel.blocks[outgoing.block];
  const uint64_t bytes =
      std::min<uint64_t>(block.used - outgoing.done, lane_->caps().max_piece_bytes);
  if (!try_put({{kStream, 0, 0, 0}}, {block.data.get() + outgoing.done, bytes})) return false;
  outgoing.done += bytes;
  if (outgoing.done == block.used) {
    ++outgoing.block;
    outgoing.done = 0;
  }
  return true;
}

bool Proxy::land_all() {
  bool any = false;
  for (int source = 0; source < layout_.num_ranks; ++source) {
    const uint32_t count = source == rank_ ? 0 : lane_->available(source);
    for (uint32_t i = 0; i < count; ++i) land(source, lane_->at(source, i));
    if (count != 0) lane_->release(source, count);
    any = any || count != 0;
  }
  return any;
}

void Proxy::refuse(int source, const Status& why) {
  fail(source, internal_error("rank {} sent what cannot be landed in windows of {} bytes: {}",
                              source, layout_.bytes(), why.message()));
  cut(source);
}

void Proxy::land(int source, const transport::Arrival& piece) {
  if (is_cut(source)) return;
  const auto [kind, line, number, target] = piece.tag.words;
  if (kind == kFarewellPiece) {
    farewells_ |= uint64_t{1} << source;
  } else if (kind == kStream) {
    const Status status = readers_[static_cast<size_t>(source)].take(
        piece.payload, [this](uint64_t rank, uint64_t offset, uint64_t bytes) {
          return target_of(rank, offset, bytes);
        });
    if (!status.ok()) refuse(source, status);
  } else if (kind == kSignalPiece && target < layout_.ranks() &&
             neighbours_.windows[target] != nullptr && is_signal_line(source, line) &&
             piece.payload.size() <= kNumberOffset) {
    publish(neighbours_.windows[target], line, piece.payload, number);
    neighbours_.landed(static_cast<int>(target));
  } else {
    refuse(source, internal_error("a piece of {} bytes of kind {:#x} for line {} of rank {}",
                                  piece.payload.size(), kind, line, target));
  }
}

// Rows land in halves, of ranks whose window is mapped here.
std::byte* Proxy::target_of(uint64_t rank, uint64_t offset, uint64_t bytes) const {
  if (rank >= layout_.ranks() || neighbours_.windows[rank] == nullptr) return nullptr;
  const bool fits =
      offset >= layout_.half(0) && offset <= layout_.bytes() && bytes <= layout_.bytes() - offset;
  return fits ? neighbours_.windows[rank] + offset : nullptr;
}

bool Proxy::is_ack_line(int source, uint64_t line) const {
  for (uint64_t half = 0; half < kHalves; ++half)
    if (line == layout_.ack_line(half, source)) return true;
  return false;
}

bool Proxy::is_signal_line(int source, uint64_t line) const {
  for (uint64_t half = 0; half < kHalves; ++half)
    if (line == layout_.flag_line(half, source)) return true;
  return is_ack_line(source, line) || line == layout_.mask_line(source);
}

}  // namespace braid::moe
