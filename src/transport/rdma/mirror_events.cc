// Mirrors, the reading half: what arrived, and what it changes.
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
    return fail(-1, fmt::format("news from rank {} about lane {}", news.sender, news.lane));
  at_peer(news.sender).was_heard = true;
  news.told == Told::kFull ? on_full(news) : on_free(news);
}

// What is not in the window was seen before: an immediate may be announced twice.
void Mirrors::on_full(const SlotNews& news) {
  Received& ring = at_peer(news.sender).received[news.everyone ? 1 : 0][news.lane];
  const uint64_t number = nearest_number<kNumberBits>(ring.full, news.number);
  if (number < ring.full || number >= ring.full + options_.num_slots) return;
  if (ring.here[number % options_.num_slots]) return;
  ring.here[number % options_.num_slots] = true;
  ++num_received_;
  const uint64_t before = ring.full;
  while (ring.here[ring.full % options_.num_slots])
    ring.here[ring.full++ % options_.num_slots] = false;
  if (ring.full == before) return;
  // Our GPU's acquire (wait_for) pairs with it.
  store_counter(counters(news.sender, key_of(news.everyone, self_), news.lane).full.value,
                ring.full);
}

void Mirrors::on_free(const SlotNews& news) {
  Sent& sent = at_peer(news.sender).sent[news.everyone ? 1 : 0][news.lane];
  const uint64_t freed = nearest_number<kNumberBits>(sent.freed, news.number);
  if (freed <= sent.freed) return;  // overtaken, or told twice
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
