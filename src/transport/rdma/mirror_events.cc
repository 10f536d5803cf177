// Mirrors, the reading half: what arrived, and what it changes.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "transport/rdma/mirror.h"

namespace braid::transport::rdma {

namespace {

constexpr int kMostMirrorBatches = 8;  // of 32 events, so that one progress() stays short

void store_counter(uint64_t& counter, uint64_t value) {
  std::atomic_ref(counter).store(value, std::memory_order_release);
}

}  // namespace

bool Mirrors::drain() {
  bool changed = false;
  for (int batch = 0; batch < kMostMirrorBatches; ++batch) {
    const size_t n = endpoint_->poll(events_);
    for (size_t i = 0; i < n; ++i) on_event(events_[i]);
    changed |= n > 0;
    if (n < events_.size()) break;
  }
  return changed;
}

void Mirrors::on_event(const sys::FabricEvent& event) {
  if (event.kind == sys::FabricEvent::Kind::kArrived) return on_news(unpack_news(event.immediate));
  auto* op = static_cast<Op*>(event.op);
  if (event.kind == sys::FabricEvent::Kind::kFailed)
    fail(op != nullptr ? op->peer : -1, endpoint_->why(event));
  if (op == nullptr) return;
  if (num_flying_ > 0) --num_flying_;
  free_ops_.push_back(op);
}

void Mirrors::on_news(const SlotNews& news) {
  if (news.sender >= size_ || news.sender == self_ || news.lane >= options_.num_lanes)
    return note_unfounded(news);
  news.told == Told::kFull ? on_full(news) : on_free(news);
}

void Mirrors::note_unfounded(const SlotNews& news) {
  const uint64_t so_far = ++num_unfounded_;
  uint64_t power = 1;
  while (power < so_far) power *= 10;
  if (power != so_far) return;
  log::warn("transport",
            "rdma of gpus: dropped {} immediates that no member can have sent, at last one that "
            "says it is of rank {}: somebody else reaches {}",
            so_far, news.sender, domain_->description());
}

// What stands on the board of `peer` there; nothing where nothing, or a part of it, was written.
std::optional<uint64_t> Mirrors::read_record(int peer, uint64_t offset) const {
  NewsRecord record;
  std::memcpy(&record, board_in(peer) + offset, sizeof record);
  if (!is_sealed(record, at_peer(peer).nonce)) return std::nullopt;
  return record.number;
}

// What is not in the window was seen before: an immediate may be announced twice.
void Mirrors::on_full(const SlotNews& news) {
  Received& ring = at_peer(news.sender).received[news.everyone ? 1 : 0][news.lane];
  const uint64_t number = nearest_number<kNumberBits>(ring.full, news.number);
  if (number < ring.full || number >= ring.full + options_.num_slots) return;
  ring.is_claimed[number % options_.num_slots] = true;
  show_slots(news.sender, news.everyone, news.lane);
}

// The slots that were claimed and recorded, as far as none is missing.
bool Mirrors::show_slots(int rank, bool everyone, int lane) {
  Received& ring = at_peer(rank).received[everyone ? 1 : 0][lane];
  const uint64_t before = ring.full;
  for (;; ++ring.full) {
    const uint64_t slot = ring.full % options_.num_slots;
    if (!ring.is_claimed[slot] ||
        read_record(rank, board_.full_at(everyone, lane, ring.full)) != ring.full)
      break;
    ring.is_claimed[slot] = false;
  }
  if (ring.full == before) return false;
  num_received_ += ring.full - before;
  // Our GPU's acquire (wait_for) pairs with it.
  store_counter(counters(rank, key_of(everyone, self_), lane).full.value, ring.full);
  return true;
}

// Records come without an immediate of their own.
bool Mirrors::show_all_slots() {
  bool changed = false;
  for (int rank = 0; rank < size_; ++rank)
    for (int lane = 0; rank != self_ && lane < options_.num_lanes; ++lane)
      for (const bool everyone : {true, false}) changed |= show_slots(rank, everyone, lane);
  return changed;
}

void Mirrors::on_free(const SlotNews& news) {
  Peer& peer = at_peer(news.sender);
  Sent& sent = peer.sent[news.everyone ? 1 : 0][news.lane];
  uint64_t freed = sent.freed;
  bool is_founded = false;
  for (uint64_t nth = 0; nth < kFreeRecords; ++nth) {
    const auto record = read_record(news.sender, board_.free_at(news.everyone, news.lane, nth));
    is_founded |= record.has_value();
    freed = std::max(freed, record.value_or(0));
  }
  if (!is_founded) return note_unfounded(news);
  peer.was_heard = true;
  if (freed == sent.freed) return;  // overtaken, or told twice
  if (freed > sent.posted)
    return fail(news.sender, fmt::format("it freed {} slots of {}", freed, sent.posted));
  sent.freed = freed;
  // Our GPU's acquire (wait_for) pairs with it.
  store_counter(
      counters(self_, key_of(news.everyone, news.sender), news.lane).free[news.sender].value,
      freed);
}

void Mirrors::fail(int rank, std::string_view why) {
  const std::lock_guard lock(status_mutex_);
  if (has_failed_) return;
  const std::string peer = rank < 0 ? std::string() : fmt::format(" to rank {}", rank);
  status_ = driver_error("rdma of gpus on {}{}: {}", domain_->description(), peer, why);
  has_failed_ = true;
}

Status Mirrors::status() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

}  // namespace braid::transport::rdma
