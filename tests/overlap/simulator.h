// Ranks that run one schedule after another, a random one of their blocks at a time: whether there
// is an order of events in which they stop for good, or write what another still reads.
//
// A block goes through its segments as the kernel does; the end of a unit that is cut waits for the
// sums of its other segments. A unit of another rank's shard goes to the
// block's pusher, which is as slow as chance has it. One of the own shard waits until all others
// have told of it. An exchange pushes every unit and waits for it. Blocks of an epoch begin when
// all of the rank's blocks have ended the epoch before (one stream); ranks meet nowhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "overlap/gemm.h"

namespace braid::overlap {

class Simulator {
 public:
  struct World {
    Op op = Op::kScatter;
    int32_t ranks = 2, blocks = 2, epochs = 1;
    int32_t slots = 2;                     // GemmArgs::num_slots
    int32_t stages = 1, most_sharers = 0;  // split_of()
    int32_t idle_block = -1;               // one that puts no sum away
    std::function<Schedule(int32_t rank)> schedule;
  };
  Simulator(const World& world, uint32_t seed) : world_(world), random_(seed) {
    for (int32_t r = 0; r < world.ranks; ++r) {
      schedules_.push_back(world.schedule(r));
      blocks_.emplace_back(static_cast<size_t>(world.blocks));
    }
    const auto units = static_cast<size_t>(schedules_[0].num_units());
    const auto ranks = static_cast<size_t>(world.ranks);
    told_.assign(ranks, std::vector(ranks, std::vector<int32_t>(units, 0)));
    read_.assign(ranks, std::vector<int32_t>(units, 0));
    epoch_.assign(ranks, 1);
    computed_.assign(ranks, std::vector<int32_t>(units, 0));
    summed_.assign(ranks, std::vector<int32_t>(static_cast<size_t>(world.blocks), 0));
    split_ = split_of(schedules_[0].num_units(), world.blocks, world.stages, world.most_sharers);
  }

  /// Empty when all ranks came through all epochs; else what went wrong.
  std::string run() {
    std::vector<std::function<bool()>> actors;
    for (int32_t r = 0; r < world_.ranks; ++r)
      for (int32_t b = 0; b < world_.blocks; ++b) {
        actors.emplace_back([=, this] { return compute(r, b); });
        actors.emplace_back([=, this] { return push(r, b); });
      }
    while (wrong_.empty() && !is_through()) {
      std::shuffle(actors.begin(), actors.end(), random_);
      bool moved = false;
      // Few at a time: some ranks then run far ahead of others.
      size_t turns = 1 + random_() % actors.size();
      for (const auto& act : actors) {
        if (moved && turns-- == 0) break;
        moved = act() || moved;
      }
      if (!moved) return "no block can go on";
      end_epochs();
    }
    return wrong_;
  }

 private:
  struct Block {
    int32_t next = 0;  // of its own segments
    bool has_pushed = false;
    std::deque<int32_t> outbox;
  };

  bool is_through() const {
    for (const int32_t epoch : epoch_)
      if (epoch <= world_.epochs) return false;
    return true;
  }
  Segment segment_of(const Block& block, int32_t number) const {
    return split_.at(number, block.next);
  }
  bool are_summed(int32_t rank, int32_t number, const Segment& segment) const {
    if (segment.begin == 0) return true;
    for (int32_t from = split_.first_sharer(segment.unit); from < number; ++from)
      if (summed_[static_cast<size_t>(rank)][static_cast<size_t>(from)] <
          epoch_[static_cast<size_t>(rank)])
        return false;
    return true;
  }
  /// A unit by its place in the shard, which all ranks have alike.
  size_t key(int32_t rank, int32_t unit) const {
    const Schedule& s = schedules_[static_cast<size_t>(rank)];
    const Tile tile = s.at(unit, 0);
    return static_cast<size_t>(tile.shard * s.unit_rows * s.unit_columns +
                               tile.row / (s.shape.tile_m * s.shape.cluster_m) * s.unit_columns +
                               tile.column / (s.shape.tile_n * s.shape.cluster_n));
  }
  bool is_told(int32_t rank, size_t unit) const {
    for (int32_t from = 0; from < world_.ranks; ++from)
      if (from != rank && told_[static_cast<size_t>(rank)][static_cast<size_t>(from)][unit] <
                              epoch_[static_cast<size_t>(rank)])
        return false;
    return true;
  }

  bool compute(int32_t rank, int32_t number) {
    Block& block = blocks_[static_cast<size_t>(rank)][static_cast<size_t>(number)];
    const Schedule& schedule = schedules_[static_cast<size_t>(rank)];
    const Segment segment = segment_of(block, number);
    const int32_t unit = segment.unit;
    if (epoch_[static_cast<size_t>(rank)] > world_.epochs || unit < 0) return false;
    if (!segment.is_last) {
      if (number != world_.idle_block)
        summed_[static_cast<size_t>(rank)][static_cast<size_t>(number)] =
            epoch_[static_cast<size_t>(rank)];
      ++block.next;
      return true;
    }
    if (!are_summed(rank, number, segment)) return false;
    const size_t at = key(rank, unit);
    const bool is_own = world_.op == Op::kExchange || schedule.at(unit, 0).shard == rank;
    const bool pushes = world_.op == Op::kExchange || !is_own;
    if (pushes && !block.has_pushed) {
      block.outbox.push_back(unit);
      block.has_pushed = true;
      if (is_own) return true;
    }
    if (is_own && !is_told(rank, at)) return false;
    if (is_own) read_[static_cast<size_t>(rank)][at] = epoch_[static_cast<size_t>(rank)];
    if (++computed_[static_cast<size_t>(rank)][at] != epoch_[static_cast<size_t>(rank)])
      wrong_ = "a unit was computed twice";
    block.has_pushed = false;
    ++block.next;
    return true;
  }

  bool push(int32_t rank, int32_t number) {
    Block& block = blocks_[static_cast<size_t>(rank)][static_cast<size_t>(number)];
    if (block.outbox.empty() || random_() % 3 == 0) return !block.outbox.empty();
    const int32_t unit = block.outbox.front();
    block.outbox.pop_front();
    const size_t at = key(rank, unit);
    const int32_t owner = schedules_[static_cast<size_t>(rank)].at(unit, 0).shard;
    for (int32_t to = 0; to < world_.ranks; ++to)
      if (to != rank && (world_.op == Op::kExchange || to == owner)) tell(rank, to, at);
    return true;
  }
  void tell(int32_t rank, int32_t to, size_t at) {
    const int32_t epoch = epoch_[static_cast<size_t>(rank)];
    if (read_[static_cast<size_t>(to)][at] < epoch - world_.slots)
      wrong_ = "a part was written over before it was read";
    told_[static_cast<size_t>(to)][static_cast<size_t>(rank)][at] = epoch;
  }

  /// A rank's next launch begins when all of its blocks and pushers have ended.
  void end_epochs() {
    for (int32_t r = 0; r < world_.ranks; ++r) {
      bool is_over = true;
      for (int32_t b = 0; b < world_.blocks; ++b) {
        const Block& block = blocks_[static_cast<size_t>(r)][static_cast<size_t>(b)];
        is_over = is_over && block.outbox.empty() && segment_of(block, b).unit < 0;
      }
      if (!is_over || epoch_[static_cast<size_t>(r)] > world_.epochs) continue;
      ++epoch_[static_cast<size_t>(r)];
      for (Block& block : blocks_[static_cast<size_t>(r)]) block = {};
    }
  }

  const World world_;
  std::mt19937 random_;
  std::vector<Schedule> schedules_;
  std::vector<std::vector<Block>> blocks_;               // [rank][block]
  std::vector<std::vector<std::vector<int32_t>>> told_;  // [at][from][unit]: the epoch
  std::vector<std::vector<int32_t>> read_;      // [at][unit]: the last epoch that was added
  std::vector<std::vector<int32_t>> computed_;  // [rank][unit]: how often
  std::vector<std::vector<int32_t>> summed_;    // [rank][block]: the epoch of its sum
  Split split_{};
  std::vector<int32_t> epoch_;  // of every rank
  std::string wrong_;
};

}  // namespace braid::overlap
