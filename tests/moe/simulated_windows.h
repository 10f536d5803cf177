// Windows of ranks that are simulated: what a rank puts into another's window lands later, in an
// order that a seed chooses, a few bytes at a time. Only what the protocol may rely on is kept: a
// signal lands after all that its rank had put into that window before (a release), unless a fault
// is planted, and after all that it had put into its own window, where others may read it; and two
// signals to one line land in their order.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "moe/phases.h"

namespace braid::moe::test {

enum class Fault {
  kNone,
  kNoFence,          // a signal may land before what was put ahead of it
  kFlagBeforeData,   // it is given before the rows are
  kResetCounter,     // the reader takes a flag back when it has used it
  kOneBufferTooFew,  // both halves are one
};

class Sea {
 public:
  Sea(WindowLayout layout, uint64_t seed, Fault fault)
      : layout_(layout), fault_(fault), random_(seed) {
    for (int r = 0; r < layout.num_ranks; ++r)
      windows_.emplace_back(layout.bytes() / sizeof(uint64_t) + 1);
    pending_.resize(layout.ranks() * layout.ranks());
  }

  std::byte* window(int rank) {
    return reinterpret_cast<std::byte*>(windows_[static_cast<size_t>(rank)].data());
  }
  uint64_t below(uint64_t n) { return random_() % n; }
  Fault fault() const { return fault_; }
  const WindowLayout& layout() const { return layout_; }
  void store(int from, int to, uint64_t offset, std::span<const std::byte> bytes) {
    constexpr uint64_t kPiece = 16;
    Way& way = way_of(from, to);
    for (uint64_t at = 0; at < bytes.size(); at += kPiece) {
      const auto part = bytes.subspan(at, std::min<uint64_t>(kPiece, bytes.size() - at));
      way.push_back({offset + at, {part.begin(), part.end()}, false, number_++});
    }
  }
  void signal(int from, int to, uint64_t line, std::span<const std::byte> words, uint64_t number) {
    std::vector<std::byte> bytes(kLineBytes);
    std::copy(words.begin(), words.end(), bytes.begin());
    std::memcpy(bytes.data() + kNumberOffset, &number, sizeof number);
    way_of(from, to).push_back({line, std::move(bytes), true, number_++});
  }

  /// One store that may land now does, if the first few that are drawn have one.
  void land_one() {
    constexpr int kDraws = 6;
    for (int draw = 0; draw < kDraws; ++draw) {
      const auto w = static_cast<size_t>(below(pending_.size()));
      Way& way = pending_[w];
      if (way.empty()) continue;
      const auto i = static_cast<size_t>(below(std::min(way.size(), kWindow)));
      if (!may_land(way, i) || !are_own_rows_there(way[i], w / layout_.ranks())) continue;
      std::copy(way[i].bytes.begin(), way[i].bytes.end(),
                window(static_cast<int>(w % layout_.ranks())) + way[i].offset);
      way.erase(way.begin() + static_cast<int64_t>(i));
      return;
    }
  }

 private:
  struct Store {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
    bool is_signal = false;
    uint64_t number = 0;
  };
  using Way = std::deque<Store>;
  static constexpr size_t kWindow = 16;  // stores of one way that are looked at

  Way& way_of(int from, int to) {
    return pending_[static_cast<size_t>(from) * layout_.ranks() + static_cast<size_t>(to)];
  }
  // Rows may pass rows and signals that are not theirs; a signal passes nothing before it.
  bool may_land(const Way& way, size_t i) const {
    for (size_t before = 0; before < i; ++before) {
      if (way[i].is_signal && fault_ != Fault::kNoFence) return false;
      if (way[before].offset == way[i].offset) return false;  // one address keeps its order
    }
    return true;
  }

  bool are_own_rows_there(const Store& store, uint64_t from) const {
    if (!store.is_signal || fault_ == Fault::kNoFence) return true;
    const Way& own = pending_[from * layout_.ranks() + from];
    return std::none_of(own.begin(), own.end(), [&](const Store& each) {
      return !each.is_signal && each.number < store.number;
    });
  }

  const WindowLayout layout_;
  const Fault fault_;
  uint64_t number_ = 0;  // of the next store
  std::mt19937_64 random_;
  std::vector<std::vector<uint64_t>> windows_;
  std::vector<Way> pending_;  // [from, to]
};

class SimulatedWindows final : public Windows {
 public:
  SimulatedWindows(Sea& sea, int rank) : sea_(sea), rank_(rank), open_(sea.layout().ranks()) {}

  std::byte* own() override { return sea_.window(rank_); }
  const std::byte* window(int peer) const override { return sea_.window(peer); }
  std::byte* room(int peer, uint64_t offset, uint64_t bytes) override {
    open_[static_cast<size_t>(peer)].push_back({offset, std::vector<std::byte>(bytes)});
    return open_[static_cast<size_t>(peer)].back().bytes.data();
  }
  void signal(int peer, uint64_t line, std::span<const std::byte> words, uint64_t number) override {
    if (sea_.fault() == Fault::kFlagBeforeData) sea_.signal(rank_, peer, line, words, number);
    for (const int window : {rank_, peer}) {  // others read what is in this rank's own
      for (const Open& each : open_[static_cast<size_t>(window)])
        sea_.store(rank_, window, each.offset, each.bytes);
      open_[static_cast<size_t>(window)].clear();
    }
    if (sea_.fault() != Fault::kFlagBeforeData) sea_.signal(rank_, peer, line, words, number);
  }
  uint64_t acquire(uint64_t line) const override {
    uint64_t number = 0;
    std::memcpy(&number, sea_.window(rank_) + line + kNumberOffset, sizeof number);
    return number;
  }
  void cut(int) override {}
  Status health(int) const override { return {}; }

 private:
  struct Open {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  Sea& sea_;
  const int rank_;
  std::vector<std::vector<Open>> open_;
};

}  // namespace braid::moe::test
