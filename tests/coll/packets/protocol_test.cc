// The protocol of packets (packets.cuh) as a model: every rank's blocks take their steps in random
// turns, some ranks far slower than others, through random sequences of calls. What the prose there
// says is checked at each step: no packet is overwritten before it was read, none is taken for
// another, and somebody can always go on. The kernels themselves need a GPU
// (tests/device/packets_check.cu); what they share with the model is the order of their steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/sanitizer.h"

namespace braid::coll {
namespace {

enum class Kind { kGather, kTwoShot, kBroadcast };
struct Shape {
  Kind kind;
  int root;
  int slot;  // packets from one rank to another
  int blocks;
};

/// What a packet says: its call, who sent it and which of its packets it is.
using Text = std::tuple<size_t, int, int>;
struct Place {
  uint32_t flag = 0;
  Text text{};
  bool is_unread = false;
};

struct Step {
  enum class What { kSend, kReceive, kHear } what;
  int peer = 0;   // to whom, from whom
  int place = 0;  // in a half
  int index = 0;  // of the text
};

// As next_epoch() of packets.cuh.
uint64_t next_epoch(uint64_t epoch) {
  const uint64_t next = epoch + 1;
  return static_cast<uint32_t>(next) != 0 ? next : next + 2;
}

struct Rank {
  std::map<int, Place> half[2];
  uint64_t epoch = 0;
  int unheard = 0;  // 1 + the place of the first greeting
  size_t call = 0;  // the next one or the one that runs
  std::vector<std::vector<Step>> blocks;
  std::vector<size_t> at;  // of each block: its next step
};

class Model {
 public:
  Model(int size, std::vector<Shape> calls, uint64_t first_epoch, bool hears)
      : ranks_(static_cast<size_t>(size)), calls_(std::move(calls)), hears_(hears) {
    for (Rank& rank : ranks_) rank.epoch = first_epoch;
    for (int r = 0; r < size; ++r) begin(r);
  }

  /// Runs to the end. What went wrong, or nothing.
  std::string run(std::mt19937& random) {
    std::vector<int> turns;  // a slow rank has one of them, the others ten
    for (int r = 0; r < size(); ++r) turns.insert(turns.end(), random() % 3 == 0 ? 1 : 10, r);
    while (error_.empty() && !is_over()) {
      if (!can_go_on()) return "nobody can go on";
      const int r = turns[random() % turns.size()];
      Rank& rank = at(r);
      if (rank.call == calls_.size()) continue;
      take_step(r, random() % rank.blocks.size());
    }
    return error_;
  }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int r) { return ranks_[static_cast<size_t>(r)]; }
  bool is_over() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const Rank& rank) { return rank.call == calls_.size(); });
  }

  void begin(int r) {
    Rank& rank = at(r);
    if (rank.call == calls_.size()) return;
    const Shape& shape = calls_[rank.call];
    rank.blocks.assign(static_cast<size_t>(shape.blocks), {});
    rank.at.assign(rank.blocks.size(), 0);
    for (int b = 0; b < shape.blocks; ++b) {
      std::vector<Step>& steps = rank.blocks[static_cast<size_t>(b)];
      if (rank.unheard != 0 && hears_) add_for_peers(steps, r, Step::What::kHear, rank.unheard - 1);
      if (shape.kind == Kind::kBroadcast) {
        add_broadcast(steps, r, b, shape);
      } else {
        add_shot(steps, r, b, shape, 0);
        if (shape.kind == Kind::kTwoShot) add_shot(steps, r, b, shape, size() * shape.slot);
      }
    }
  }
  /// One with each peer, at `first` + peer.
  void add_for_peers(std::vector<Step>& steps, int r, Step::What what, int first) {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != r) steps.push_back({what, peer, first + peer, 0});
  }
  void add_shot(std::vector<Step>& steps, int r, int b, const Shape& shape, int first) {
    for (const Step::What what : {Step::What::kSend, Step::What::kReceive})
      for (int i = b; i < shape.slot; i += shape.blocks)
        for (int peer = 0; peer < size(); ++peer) {
          const int source = what == Step::What::kSend ? r : peer;
          if (peer != r) steps.push_back({what, peer, first + source * shape.slot + i, first + i});
        }
  }
  void add_broadcast(std::vector<Step>& steps, int r, int b, const Shape& shape) {
    const bool is_root = r == shape.root;
    if (b == 0 && !is_root)
      for (int peer = 0; peer < size(); ++peer)
        if (peer != r) steps.push_back({Step::What::kSend, peer, shape.slot + r, -1});
    for (int i = b; i < shape.slot; i += shape.blocks)
      for (int peer = 0; peer < size(); ++peer) {
        if (is_root && peer != r) steps.push_back({Step::What::kSend, peer, i, i});
        if (!is_root && peer == shape.root) steps.push_back({Step::What::kReceive, peer, i, i});
      }
    if (b == 0 && !is_root)
      for (int peer = 0; peer < size(); ++peer)
        if (peer != r && peer != shape.root)
          steps.push_back({Step::What::kReceive, peer, shape.slot + peer, -1});
  }

  uint64_t epoch_of(const Rank& rank) const { return next_epoch(rank.epoch); }

  bool is_ready(int r, const Step& step) {
    Rank& rank = at(r);
    if (step.what == Step::What::kSend) return true;
    if (step.what == Step::What::kReceive)
      return rank.half[epoch_of(rank) % 2][step.place].flag ==
             static_cast<uint32_t>(epoch_of(rank));
    const uint32_t seen = rank.half[rank.epoch % 2][step.place].flag;  // as hear()
    return seen == static_cast<uint32_t>(rank.epoch) ||
           seen == static_cast<uint32_t>(next_epoch(epoch_of(rank)));
  }
  bool can_go_on() {
    for (int r = 0; r < size(); ++r)
      for (size_t b = 0; at(r).call < calls_.size() && b < at(r).blocks.size(); ++b)
        if (at(r).at[b] < at(r).blocks[b].size() && is_ready(r, at(r).blocks[b][at(r).at[b]]))
          return true;
    return false;
  }

  void take_step(int r, size_t b) {
    Rank& rank = at(r);
    if (rank.at[b] == rank.blocks[b].size()) return;
    const Step step = rank.blocks[b][rank.at[b]];
    if (!is_ready(r, step)) return;
    if (step.what == Step::What::kSend) send(r, step);
    if (step.what == Step::What::kReceive) receive(r, step);
    if (step.what == Step::What::kHear) rank.half[rank.epoch % 2][step.place].is_unread = false;
    ++rank.at[b];
    for (size_t k = 0; k < rank.blocks.size(); ++k)
      if (rank.at[k] < rank.blocks[k].size()) return;
    end(r);
  }
  void send(int r, const Step& step) {
    const Rank& rank = at(r);
    const uint64_t epoch = epoch_of(rank);
    Place& place = at(step.peer).half[epoch % 2][step.place];
    if (place.is_unread) error_ = "a packet was overwritten before it was read";
    const bool is_for_hearing = step.index < 0 && step.peer == calls_[rank.call].root;
    place = {static_cast<uint32_t>(epoch), {rank.call, r, step.index}, !is_for_hearing || hears_};
  }
  void receive(int r, const Step& step) {
    Rank& rank = at(r);
    Place& place = rank.half[epoch_of(rank) % 2][step.place];
    if (place.text != Text{rank.call, step.peer, step.index})
      error_ = "a packet was taken for another";
    place.is_unread = false;
  }
  void end(int r) {
    Rank& rank = at(r);
    const Shape& shape = calls_[rank.call];
    const bool leaves = shape.kind == Kind::kBroadcast && shape.root == r;
    rank.unheard = leaves ? 1 + shape.slot : 0;
    rank.epoch = epoch_of(rank);
    ++rank.call;
    begin(r);
  }

  std::vector<Rank> ranks_;
  const std::vector<Shape> calls_;
  const bool hears_;
  std::string error_;
};

std::vector<Shape> some_calls(int size, std::mt19937& random) {
  const bool are_broadcasts = random() % 3 == 0;
  const int last_root = static_cast<int>(random() % static_cast<unsigned>(size));
  std::vector<Shape> calls;
  for (int i = 0; i < 8; ++i) {
    const int slot = 1 + static_cast<int>(random() % 4);
    const int blocks = 1 + static_cast<int>(random() % static_cast<unsigned>(slot));
    const auto kind = are_broadcasts ? Kind::kBroadcast : static_cast<Kind>(random() % 3);
    const int root = random() % 2 == 0 ? last_root : static_cast<int>(random()) & 1;
    calls.push_back({kind, root, slot, blocks});
  }
  return calls;
}

// One thread: sanitizers find nothing more in the thousandth run.
constexpr unsigned kPacketRuns = kIsSanitized ? 200 : 3000;

/// What went wrong in the first run in which something did.
std::string play(bool hears) {
  for (unsigned seed = 0; seed < kPacketRuns; ++seed) {
    std::mt19937 random(seed);
    const int size = 2 + static_cast<int>(seed % 3);
    const uint64_t first_epoch = seed % 4 == 0 ? 0xffffffff - random() % 6 : random() % 2;
    Model model(size, some_calls(size, random), first_epoch, hears);
    const std::string error = model.run(random);
    if (!error.empty()) return error + ", seed " + std::to_string(seed);
  }
  return "";
}

TEST(PacketProtocol, LosesNothingAndNeverHangs) { EXPECT_EQ(play(true), ""); }

// Without it a root runs as far ahead of the others as it likes.
TEST(PacketProtocol, WhatARootLeavesMustBeHeard) { EXPECT_NE(play(false), ""); }

}  // namespace
}  // namespace braid::coll
