// Mirrors: opening, closing, and what is posted. mirror_events.cc has the reading half.
#include "transport/rdma/mirror.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace braid::transport::rdma {

namespace {

// The NIC may still be reading what stood there; half of the one and half of the other is sealed by
// neither, and the other's own write follows. The thread sanitizer does not look (tsan.ignore).
[[gnu::noinline]] void put_record(std::byte* place, const NewsRecord& record) {
  auto* const words = reinterpret_cast<volatile uint64_t*>(place);
  words[0] = record.number;
  words[1] = record.sum;
}

// How long greeting and closing wait for what was said to leave.
constexpr int64_t kMirrorLingerNs = 100'000'000;
// Ops whose completion never came are not reused, so their number must have a bound.
constexpr size_t kMostMirrorOps = 1 << 16;

uint64_t load_counter(uint64_t& counter) {
  return std::atomic_ref(counter).load(std::memory_order_acquire);
}

}  // namespace

Mirrors::Mirrors(MirrorOptions options, int self, int size)
    : options_(std::move(options)),
      self_(self),
      size_(size),
      segment_bytes_(
          pcie::segment_bytes(size, options_.slot_bytes, options_.num_slots, options_.num_lanes)),
      board_{options_.num_slots, static_cast<uint32_t>(options_.num_lanes)},
      pages_(static_cast<size_t>(size)),
      peers_(static_cast<size_t>(size)) {
  for (Peer& peer : peers_) {
    peer.nonce = sys::random_key();
    for (auto& by_lane : peer.received)
      for (Received& ring : by_lane) ring.is_claimed.resize(options_.num_slots);
  }
}

Result<std::unique_ptr<Mirrors>> Mirrors::open(sys::FabricLibrary& library,
                                               const MirrorOptions& options, int self, int size) {
  if (size > nvlink::kMostRanks)
    return unsupported("mirrors: {} ranks, {} is the limit", size, nvlink::kMostRanks);
  if (options.num_lanes < 1 || options.num_lanes > pcie::kMostLanes || options.num_slots < 1 ||
      options.slot_bytes < 1)
    return invalid_argument("mirrors: {} slots of {} bytes on {} lanes", options.num_slots,
                            options.slot_bytes, options.num_lanes);
  std::unique_ptr<Mirrors> mirrors(new Mirrors(options, self, size));
  BRAID_ASSIGN_OR_RETURN(mirrors->domain_,
                         library.open({options.provider, options.address, options.slot_bytes}));
  sys::EndpointRequest request;
  request.num_peers = static_cast<uint32_t>(size);
  // Every slot of every ring to every peer and from it, its record, and as many frees.
  const uint64_t most = uint64_t{6} * 2 * static_cast<uint64_t>(size * options.num_lanes) *
                        (uint64_t{options.num_slots} + 1);
  request.queue_depth = static_cast<uint32_t>(std::clamp<uint64_t>(most, 1024, 1 << 14));
  BRAID_ASSIGN_OR_RETURN(mirrors->endpoint_, mirrors->domain_->open_endpoint(request));
  BRAID_RETURN_IF_ERROR(mirrors->allocate());
  return mirrors;
}

Status Mirrors::allocate() {
  for (int r = 0; r < size_; ++r) {
    const uint64_t boards = r == self_ ? static_cast<uint64_t>(size_) : 1;
    BRAID_ASSIGN_OR_RETURN(
        pages_[static_cast<size_t>(r)],
        sys::Pages::map("pages for a mirror", segment_bytes_ + boards * board_.bytes()));
    const sys::Access access = r == self_ ? sys::Access::kLocalSource : sys::Access::kRemoteTarget;
    const sys::FabricMemory memory{segment(r) + slots_at(), slots_bytes() + boards * board_.bytes(),
                                   access};
    BRAID_ASSIGN_OR_RETURN(const sys::FabricRegion* const region,
                           domain_->register_memory(memory, sys::random_key()));
    (r == self_ ? source_region_ : at_peer(r).region) = region;
  }
  return {};
}

Mirrors::RemoteEndpoint Mirrors::remote_endpoint_for(int peer) const {
  const sys::FabricRegion& region = *at_peer(peer).region;
  return {{region.remote_address(), region.key()}, at_peer(peer).nonce};
}

Status Mirrors::meet(int peer, const std::string& endpoint_name, const RemoteEndpoint& remote) {
  BRAID_ASSIGN_OR_RETURN(at_peer(peer).fabric_peer, endpoint_->add_peer(endpoint_name));
  at_peer(peer).remote = remote;
  return {};
}

std::string Mirrors::silent_peers() const {
  std::string out;
  for (int r = 0; r < size_; ++r) {
    if (r == self_) continue;
    if (!at_peer(r).was_heard) out += fmt::format(" rank {} was not heard;", r);
    if (at_peer(r).is_greeting_due) out += fmt::format(" rank {} cannot be reached;", r);
  }
  return out;
}

// The first write to a peer is "busy" until that peer polls too, so all ranks are here at once; and
// nobody goes before what it said has left.
Status Mirrors::greet(Deadline deadline) {
  for (std::string silent = silent_peers(); !silent.empty(); silent = silent_peers()) {
    BRAID_RETURN_IF_ERROR(status());
    if (deadline.passed()) return timeout("mirrors on {}:{}", domain_->description(), silent);
    if (!progress()) sched_yield();
  }
  linger(Deadline::after_ns(kMirrorLingerNs));
  return status();
}

pcie::RingCounters& Mirrors::counters(int owner, int key, int lane) const {
  return reinterpret_cast<pcie::RingHead*>(segment(owner))->counters[key][lane];
}

uint64_t Mirrors::slot_offset(int key, int lane, uint64_t number) const {
  const auto ring = static_cast<uint64_t>(key * options_.num_lanes + lane);
  return (ring * options_.num_slots + number % options_.num_slots) * options_.slot_bytes;
}

Mirrors::Op* Mirrors::take_op() {
  if (free_ops_.empty()) return ops_.size() < kMostMirrorOps ? &ops_.emplace_back() : nullptr;
  Op* op = free_ops_.back();
  free_ops_.pop_back();
  return op;
}

// On shm a confirmed write that is refused never completes, and every later one is "busy".
bool Mirrors::post(int rank, sys::FabricTransfer write) {
  Op* op = take_op();
  if (op == nullptr) return false;
  op->peer = rank;
  write.peer = at_peer(rank).fabric_peer;
  write.local_region = source_region_;
  write.remote_key = at_peer(rank).remote.mirror.key;
  write.wants_delivery = write.wants_delivery && options_.provider != "shm";
  const Result<bool> posted = endpoint_->write(write, op);
  if (posted.ok() && posted.value()) {
    ++num_flying_;
    return true;
  }
  free_ops_.push_back(op);
  if (!posted.ok()) fail(rank, posted.status().message());
  return false;
}

// Until the end nobody asks whether a record has landed: a free that is lost is in the next one, and where
// a slot's record is lost the connection is.
bool Mirrors::post_record(int rank, uint64_t offset, uint64_t number, const SlotNews* news) {
  NewsRecord record{number};
  seal(record, at_peer(rank).remote.nonce);
  put_record(board_out(rank) + offset, record);
  return write_record(rank, offset, news, false);
}

bool Mirrors::write_record(int rank, uint64_t offset, const SlotNews* news, bool wants_delivery) {
  sys::FabricTransfer write;
  write.local = board_out(rank) + offset;
  write.bytes = sizeof(NewsRecord);
  write.remote_address = at_peer(rank).remote.mirror.address + slots_bytes() + offset;
  if (news != nullptr) write.immediate = pack_news(*news);
  write.wants_delivery = wants_delivery;
  return post(rank, write);
}

bool Mirrors::post_slot(int rank, bool everyone, int lane, uint64_t number) {
  const uint64_t offset = slot_offset(key_of(everyone, rank), lane, number);
  sys::FabricTransfer write;
  write.local = segment(self_) + slots_at() + offset;
  write.bytes = options_.slot_bytes;
  write.remote_address = at_peer(rank).remote.mirror.address + offset;
  write.immediate = pack_news({Told::kFull, self_, everyone, lane, number});
  return post(rank, write);
}

// Each slot's record directly behind it. Its source is written again only with that of slot
// + num_slots, which the reader must have freed.
bool Mirrors::post_slots(int rank, bool everyone, int lane) {
  Sent& sent = at_peer(rank).sent[everyone ? 1 : 0][lane];
  const uint64_t full =
      load_counter(counters(self_, key_of(everyone, rank), lane).full.value);  // of our GPU
  bool changed = false;
  for (; sent.recorded < full; ++sent.recorded, changed = true) {
    if (sent.posted == sent.recorded) {
      if (!post_slot(rank, everyone, lane, sent.posted)) break;
      ++sent.posted;
      ++num_sent_;
    }
    const uint64_t offset = board_.full_at(everyone, lane, sent.recorded);
    if (!post_record(rank, offset, sent.recorded, nullptr)) break;
  }
  return changed;
}

// The greeting is a free of nothing.
bool Mirrors::post_free(int rank, bool everyone, int lane) {
  Peer& peer = at_peer(rank);
  Received& ring = peer.received[everyone ? 1 : 0][lane];
  const int key = key_of(everyone, self_);
  const uint64_t freed = load_counter(counters(rank, key, lane).free[self_].value);  // of our GPU
  const bool is_greeting = peer.is_greeting_due && everyone && lane == 0;
  if (freed == ring.told && !is_greeting) return false;
  const SlotNews news{Told::kFree, self_, everyone, lane, freed};
  if (!post_record(rank, board_.free_at(everyone, lane, ring.num_told), freed, &news)) return false;
  ++ring.num_told;
  ring.told = freed;
  peer.is_greeting_due = peer.is_greeting_due && !is_greeting;
  return true;
}

bool Mirrors::post_due(int rank) {
  bool changed = false;
  for (int lane = 0; lane < options_.num_lanes; ++lane)
    for (const bool everyone : {true, false}) {
      changed |= post_free(rank, everyone, lane);
      changed |= post_slots(rank, everyone, lane);
    }
  return changed;
}

bool Mirrors::progress() {
  if (has_failed_) return false;
  bool changed = drain();
  changed |= show_all_slots();
  for (int step = 1; step < size_ && !has_failed_; ++step)
    changed |= post_due((self_ + step) % size_);
  return changed;
}

bool Mirrors::has_sent_all() const {
  for (int r = 0; r < size_; ++r)
    for (int lane = 0; r != self_ && lane < options_.num_lanes; ++lane)
      for (const bool everyone : {true, false})
        if (at_peer(r).sent[everyone ? 1 : 0][lane].recorded <
            load_counter(counters(self_, key_of(everyone, r), lane).full.value))
          return false;
  return true;
}

void Mirrors::linger(Deadline deadline) {
  while (!has_failed_ && !deadline.passed() && (num_flying_ > 0 || !has_sent_all()))
    if (!progress()) sched_yield();
}

// That a record completed says that it has left, and what is on its way when its endpoint closes may be
// lost. So each ring's last ones go once more, as they stand on our board, to be known to have landed.
void Mirrors::confirm_records(Deadline deadline) {
  for (int r = 0; r < size_; ++r)
    for (int lane = 0; r != self_ && lane < options_.num_lanes; ++lane)
      for (const bool everyone : {true, false}) {
        const uint64_t end = at_peer(r).sent[everyone ? 1 : 0][lane].recorded;
        uint64_t number = end - std::min<uint64_t>(end, options_.num_slots);
        while (number < end) {
          if (has_failed_ || deadline.passed()) return;
          if (write_record(r, board_.full_at(everyone, lane, number), nullptr, true))
            ++number;
          else if (!progress())
            sched_yield();
        }
      }
}

Mirrors::~Mirrors() {
  if (endpoint_ == nullptr) return;
  const Deadline deadline = Deadline::after_ns(kMirrorLingerNs);
  linger(deadline);
  confirm_records(deadline);
  linger(deadline);
  endpoint_.reset();
  domain_.reset();
}

}  // namespace braid::transport::rdma
