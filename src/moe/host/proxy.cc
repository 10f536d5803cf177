#include "moe/host/proxy.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace braid::moe {

namespace {

// Tags of pieces: what it is, where it lands, and of a signal its number.
constexpr uint64_t kRows = 0x6d6f6501, kSignal = 0x6d6f6502;
constexpr uint64_t kBlockBytes = 256 << 10;
constexpr int64_t kFarewellNs = 1'000'000'000;
constexpr int kIdleYields = 200;

transport::PieceTag tag_of(uint64_t kind, uint64_t offset, uint64_t number) {
  return {{kind, offset, number, 0}};
}

}  // namespace

Proxy::Proxy(std::unique_ptr<transport::Lane> lane, const WindowLayout& layout, std::byte* own,
             int rank, std::function<void()> landed)
    : layout_(layout),
      own_(own),
      rank_(rank),
      landed_(std::move(landed)),
      lane_(std::move(lane)),
      open_(static_cast<size_t>(layout.num_ranks)),
      outgoing_(static_cast<size_t>(layout.num_ranks)),
      health_(static_cast<size_t>(layout.num_ranks)),
      thread_([this] { run(); }) {}

Proxy::~Proxy() {
  is_ending_.store(true, std::memory_order_relaxed);
  has_work_.notify_one();
  thread_.join();
}

std::byte* Proxy::room(int peer, uint64_t offset, uint64_t bytes) {
  Parcel& parcel = open_[static_cast<size_t>(peer)];
  if (parcel.blocks.empty() || parcel.block_used + bytes > parcel.block_bytes) {
    parcel.block_bytes = std::max(bytes, kBlockBytes);
    parcel.blocks.push_back(std::make_unique<std::byte[]>(parcel.block_bytes));
    parcel.block_used = 0;
  }
  std::byte* const data = parcel.blocks.back().get() + parcel.block_used;
  parcel.block_used += bytes;
  Stretch* const last = parcel.stretches.empty() ? nullptr : &parcel.stretches.back();
  if (last != nullptr && last->offset + last->bytes == offset && last->data + last->bytes == data)
    last->bytes += bytes;
  else
    parcel.stretches.push_back({offset, data, bytes});
  return data;
}

void Proxy::signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number) {
  Parcel& parcel = open_[static_cast<size_t>(peer)];
  parcel.line = line;
  std::copy(words.begin(), words.end(), parcel.words.begin());
  parcel.num_words = words.size();
  parcel.number = number;
  {
    const std::lock_guard lock(mutex_);
    outgoing_[static_cast<size_t>(peer)].parcels.push_back(std::move(parcel));
  }
  has_work_.notify_one();
  parcel = {};
}

Status Proxy::health(int peer) const {
  const std::lock_guard lock(mutex_);
  return health_[static_cast<size_t>(peer)];
}

void Proxy::fail(int peer, const Status& why) {
  const std::lock_guard lock(mutex_);
  Status& health = health_[static_cast<size_t>(peer)];
  if (health.ok()) health = why.with_context(fmt::format("moe: way to rank {}", peer));
  outgoing_[static_cast<size_t>(peer)].parcels.clear();
}

void Proxy::run() {
  int idle = 0;
  int64_t ends_ns = 0;
  for (;;) {
    bool moved = lane_->progress();
    for (int peer = 0; peer < layout_.num_ranks; ++peer)
      if (peer != rank_) moved = put_some(peer) || moved;
    moved = land_all() || moved;
    if (is_ending_.load(std::memory_order_relaxed)) {
      if (ends_ns == 0) ends_ns = now_ns() + kFarewellNs;
      if (!has_parcels() || now_ns() > ends_ns) return;
    }
    idle = moved ? 0 : idle + 1;
    if (idle < kIdleYields) {
      if (!moved) sched_yield();
      continue;
    }
    std::unique_lock lock(mutex_);
    has_work_.wait_for(lock, std::chrono::microseconds(100));
  }
}

bool Proxy::has_parcels() {
  const std::lock_guard lock(mutex_);
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& each) { return !each.parcels.empty(); });
}

// The first parcel stays where it is while it is put: a deque does not move what lies in it.
bool Proxy::put_some(int peer) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  Parcel* parcel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (is_cut(peer)) outgoing.parcels.clear();
    if (outgoing.parcels.empty()) {
      outgoing.stretch = outgoing.done = 0;
      return false;
    }
    parcel = &outgoing.parcels.front();
  }
  if (const Status health = lane_->health(peer); !health.ok()) {
    fail(peer, health);
    return true;
  }
  bool moved = false, is_over = false;
  while (!is_over && put_piece(peer, *parcel, is_over)) moved = true;
  if (is_over) {
    const std::lock_guard lock(mutex_);
    outgoing.parcels.pop_front();
    outgoing.stretch = outgoing.done = 0;
  }
  return moved;
}

bool Proxy::put_piece(int peer, Parcel& parcel, bool& is_over) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  const auto to = transport::PeerSet::only(peer);
  if (outgoing.stretch == parcel.stretches.size()) {
    is_over = lane_->try_put(to, tag_of(kSignal, parcel.line, parcel.number),
                             std::span(parcel.words).first(parcel.num_words)) ==
              transport::PutResult::kAccepted;
    return is_over;
  }
  const Stretch& stretch = parcel.stretches[outgoing.stretch];
  const uint64_t bytes =
      std::min<uint64_t>(stretch.bytes - outgoing.done, lane_->caps().max_piece_bytes);
  if (lane_->try_put(to, tag_of(kRows, stretch.offset + outgoing.done, 0),
                     {stretch.data + outgoing.done, bytes}) != transport::PutResult::kAccepted)
    return false;
  outgoing.done += bytes;
  if (outgoing.done == stretch.bytes) {
    ++outgoing.stretch;
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

void Proxy::land(int source, const transport::Arrival& piece) {
  if (is_cut(source)) return;
  const auto [kind, offset, number, unused] = piece.tag.words;
  if (kind == kRows && may_land(source, offset, piece.payload.size())) {
    std::memcpy(own_ + offset, piece.payload.data(), piece.payload.size());
  } else if (kind == kSignal && is_signal_line(source, offset) &&
             piece.payload.size() <= kNumberOffset) {
    publish(own_, offset, piece.payload, number);
    landed_();
  } else {
    fail(source, internal_error("rank {} sent {} bytes of kind {:#x} for {} of a window of {}",
                                source, piece.payload.size(), kind, offset, layout_.bytes()));
    cut(source);
  }
}

bool Proxy::may_land(int, uint64_t offset, uint64_t bytes) const {
  return offset >= layout_.half(0) && offset <= layout_.bytes() &&
         bytes <= layout_.bytes() - offset;
}

bool Proxy::is_signal_line(int source, uint64_t line) const {
  for (uint64_t half = 0; half < kHalves; ++half)
    if (line == layout_.flag_line(half, source) || line == layout_.ack_line(half, source))
      return true;
  return line == layout_.mask_line(source);
}

}  // namespace braid::moe
