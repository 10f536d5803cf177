#include "moe/phases.h"

namespace braid::moe {

namespace {

uint64_t bit(int rank) { return uint64_t{1} << rank; }

/// What a rank of the twin writes into a flag line.
struct Said {
  FlagWords words;
  uint32_t remark = 0;
};
static_assert(sizeof(Said) <= kNumberOffset);

constexpr uint32_t kOfMask = 1;  // in the options of no call

}  // namespace

const char* call_name(CallKind kind) {
  switch (kind) {
    case CallKind::kDispatch: return "dispatch";
    case CallKind::kCombine: return "combine";
    case CallKind::kLowLatencyDispatch: return "low_latency_dispatch";
    case CallKind::kLowLatencyCombine: return "low_latency_combine";
    case CallKind::kMeet: return "clean_low_latency_buffer";
    default: return "no call";
  }
}

Phases::Phases(Windows& windows, WindowLayout layout, int rank)
    : windows_(windows),
      layout_(layout),
      rank_(rank),
      heard_(static_cast<size_t>(layout.num_ranks)) {}

bool Phases::may_send(uint64_t phase) const {
  for (int peer = 0; peer < size(); ++peer)
    if (!is_masked(peer) && !has_acked(phase, peer)) return false;
  return true;
}

std::vector<int> Phases::missing_acks(uint64_t phase) const {
  std::vector<int> missing;
  for (int peer = 0; peer < size(); ++peer)
    if (!is_masked(peer) && !has_acked(phase, peer)) missing.push_back(peer);
  return missing;
}

bool Phases::has_acked(uint64_t phase, int peer) const {
  return phase <= kHalves ||
         windows_.acquire(layout_.ack_line(phase % kHalves, peer)) >= phase - kHalves;
}

void Phases::signal_failure(uint64_t phase, uint32_t call) {
  FlagWords words;
  words.call = call;
  for (int peer = 0; peer < size(); ++peer)
    if (!is_masked(peer)) owe(phase, peer, words);
  signal_masked(phase, call);
  settle();
}

void Phases::signal_masked(uint64_t phase, uint32_t call) {
  if (mask_ == given_up_) return;
  FlagWords words;
  words.shape.options = kOfMask;
  words.call = call;
  for (int peer = 0; peer < size(); ++peer)
    if (is_masked(peer) && !is_given_up(peer)) owe(phase, peer, words);
  settle();
}

bool Phases::is_of_mask(const FlagWords& words) {
  return words.shape.kind == CallKind::kNone && words.shape.options == kOfMask;
}

// At most one for each half of a peer: it may be gone, and never ack anything.
void Phases::owe(uint64_t phase, int peer, const FlagWords& words) {
  for (Owed& owed : owed_) {
    if (owed.peer != peer || owed.phase % kHalves != phase % kHalves) continue;
    owed.phase = phase;
    owed.words = words;
    return;
  }
  owed_.push_back({phase, phase, peer, words});
}

std::byte* Phases::room_in_region(uint64_t phase, int peer, uint64_t offset, uint64_t bytes) {
  return windows_.room(peer, layout_.region(phase % kHalves, rank_) + offset, bytes);
}

std::byte* Phases::room_in_half(uint64_t phase, int peer, uint64_t offset, uint64_t bytes) {
  return windows_.room(peer, layout_.half(phase % kHalves) + offset, bytes);
}

void Phases::signal(uint64_t phase, int peer, const FlagWords& words, uint32_t remark) {
  // Its number stands for what is owed in the half before.
  std::erase_if(owed_, [&](const Owed& owed) {
    return owed.peer == peer && owed.phase % kHalves == phase % kHalves;
  });
  send(phase, peer, words, remark);
}

void Phases::send(uint64_t phase, int peer, const FlagWords& words, uint32_t remark) {
  const Said said{words, remark};
  windows_.signal(peer, layout_.flag_line(phase % kHalves, rank_),
                  std::as_bytes(std::span(&said, 1)), phase);
}

bool Phases::has_arrived(uint64_t phase, int source) const {
  return windows_.acquire(layout_.flag_line(phase % kHalves, source)) >= phase;
}

bool Phases::has_arrived(uint64_t phase) const {
  for (int source = 0; source < size(); ++source)
    if (!is_masked(source) && !has_arrived(phase, source)) return false;
  return true;
}

std::vector<int> Phases::missing_flags(uint64_t phase) const {
  std::vector<int> missing;
  for (int source = 0; source < size(); ++source)
    if (!is_masked(source) && !has_arrived(phase, source)) missing.push_back(source);
  return missing;
}

FlagWords Phases::words_of(uint64_t phase, int source) const {
  FlagWords words;
  std::memcpy(&words, windows_.own() + layout_.flag_line(phase % kHalves, source), sizeof words);
  return words;
}

uint32_t Phases::remark_of(uint64_t phase, int source) const {
  Said said;
  std::memcpy(&said, windows_.own() + layout_.flag_line(phase % kHalves, source), sizeof said);
  return said.remark;
}

const std::byte* Phases::region_at(uint64_t phase, int source) const {
  const std::byte* const window = windows_.window(source);
  return window == nullptr ? nullptr : window + layout_.region(phase % kHalves, source);
}

const std::byte* Phases::region_of(uint64_t phase, int source) const {
  return windows_.own() + layout_.region(phase % kHalves, source);
}

const std::byte* Phases::half_of(uint64_t phase) const {
  return windows_.own() + layout_.half(phase % kHalves);
}

void Phases::release(uint64_t phase, bool all_arrived) {
  received_[phase % kHalves] = phase;
  if (all_arrived)
    ack(phase);
  else
    unsettled_[phase % kHalves] = phase;
}

void Phases::settle() {
  std::erase_if(owed_, [this](const Owed& owed) {
    if (is_given_up(owed.peer)) return true;
    if (!has_acked(owed.first, owed.peer)) return false;
    send(owed.phase, owed.peer, owed.words, 0);
    return true;
  });
  for (uint64_t& phase : unsettled_) {
    if (phase == 0 || !has_arrived(phase)) continue;
    ack(phase);
    phase = 0;
  }
}

void Phases::ack(uint64_t phase) {
  for (int peer = 0; peer < size(); ++peer)
    windows_.signal(peer, layout_.ack_line(phase % kHalves, rank_), {}, phase);
}

void Phases::give_up(int peer) {
  mask_ |= bit(peer);
  given_up_ |= bit(peer);
  windows_.cut(peer);
  tell();
}

void Phases::forget_given_up() {
  mask_ = 0;
  given_up_ = 0;
  tell();
}

// The mask is the number itself: it is written in one piece, and 0 is what a line begins with.
void Phases::tell() {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) windows_.signal(peer, layout_.mask_line(rank_), {}, given_up_);
}

bool Phases::hear() {
  bool is_news = false;
  for (int peer = 0; peer < size(); ++peer) {
    uint64_t& heard = heard_[static_cast<size_t>(peer)];
    const uint64_t told = windows_.acquire(layout_.mask_line(peer));
    if (told == heard || peer == rank_) continue;
    heard = told;
    if (is_masked(peer)) continue;  // what it thinks does not matter any more
    if ((told & bit(rank_)) != 0) told_off_ = peer;
    is_news = take_over(told & ~bit(rank_) & ~mask_) || is_news;
  }
  return is_news;
}

bool Phases::take_over(uint64_t lost) {
  for (int peer = 0; peer < size(); ++peer)
    if ((lost & bit(peer)) != 0) windows_.cut(peer);
  mask_ |= lost;
  given_up_ |= lost;
  return lost != 0;
}

}  // namespace braid::moe
