// Ranks that run one schedule after another, a random one of their blocks at a time: whether there
// is an order of events in which they stop for good, or write what another still reads.
//
// A block goes through its segments as the kernel does; the end of a unit that is cut waits for the
// sums of its other segments. A tile of another rank's shard goes to the
// block's pusher, which is as slow as chance has it, or counts for its batch, which one of two copy
// engines takes when it is whole, each one after the other. One of the own shard waits until all others
// have told of it, and with it the whole cluster. An exchange pushes every tile and waits for it. Blocks of an epoch begin when
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
#include "overlap/launch.h"

namespace braid::overlap {

class Simulator {
 public:
  struct World {
    Op op = Op::kScatter;
    int32_t ranks = 2, blocks = 2, epochs = 1;
    int32_t slots = 2;                     // GemmArgs::num_slots
    int32_t stages = 1, most_sharers = 0;  // split_of()
    int32_t idle_block = -1;               // one that puts no sum away
    int32_t batches = 0;                   // of a shard; 0: pushers take tile by tile
    std::function<Schedule(int32_t rank)> schedule;
  };
  Simulator(const World& world, uint32_t seed) : world_(world), random_(seed) {
    for (int32_t r = 0; r < world.ranks; ++r) {
      schedules_.push_back(world.schedule(r));
      blocks_.emplace_back(static_cast<size_t>(world.blocks));
    }
    const auto tiles = static_cast<size_t>(schedules_[0].ranks * schedules_[0].tiles_per_shard());
    const auto ranks = static_cast<size_t>(world.ranks);
    told_.assign(ranks, std::vector(ranks, std::vector<int32_t>(tiles, 0)));
    read_.assign(ranks, std::vector<int32_t>(tiles, 0));
    epoch_.assign(ranks, 1);
    computed_.assign(ranks, std::vector<int32_t>(tiles, 0));
    batches_ = batches_of(schedules_[0], world.batches);
    engines_.assign(ranks, std::vector<size_t>(kEngines, 0));
    for (int32_t r = 0; r < world.ranks; ++r) {
      pushes_.push_back(world.batches > 0
                            ? pushes_of(schedules_[static_cast<size_t>(r)], batches_, r)
                            : std::vector<Push>());
      finished_.emplace_back(static_cast<size_t>(world.ranks * batches_.per_shard), 0);
    }
    summed_.assign(ranks, std::vector<int32_t>(static_cast<size_t>(world.blocks), 0));
    split_ = split_of(schedules_[0].num_units(), world.blocks, world.stages, world.most_sharers);
  }

  /// Empty when all ranks came through all epochs; else what went wrong.
  std::string run() {
    std::vector<std::function<bool()>> actors;
    for (int32_t r = 0; r < world_.ranks; ++r) {
      for (int32_t b = 0; b < world_.blocks; ++b) {
        actors.emplace_back([=, this] { return compute(r, b); });
        actors.emplace_back([=, this] { return push(r, b); });
      }
      for (size_t e = 0; e < kEngines; ++e) actors.emplace_back([=, this] { return take(r, e); });
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
    std::deque<size_t> outbox;
  };
  static constexpr size_t kEngines = 2;

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
  /// A tile by its number, which all ranks have alike.
  size_t key(const Tile& tile) const {
    return static_cast<size_t>(tile.shard * schedules_[0].tiles_per_shard() + tile.index);
  }
  std::vector<Tile> tiles_of(int32_t rank, int32_t unit) const {
    const Schedule& schedule = schedules_[static_cast<size_t>(rank)];
    const int32_t count = schedule.shape.cluster_m * schedule.shape.cluster_n;
    std::vector<Tile> tiles;
    for (int32_t block = 0; block < count; ++block) tiles.push_back(schedule.at(unit, block));
    return tiles;
  }
  bool is_own(int32_t rank, const Tile& tile) const {
    return world_.op == Op::kExchange || tile.shard == rank;
  }
  bool is_told(int32_t rank, size_t tile) const {
    for (int32_t from = 0; from < world_.ranks; ++from)
      if (from != rank && told_[static_cast<size_t>(rank)][static_cast<size_t>(from)][tile] <
                              epoch_[static_cast<size_t>(rank)])
        return false;
    return true;
  }

  bool compute(int32_t rank, int32_t number) {
    Block& block = blocks_[static_cast<size_t>(rank)][static_cast<size_t>(number)];
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
    const std::vector<Tile> tiles = tiles_of(rank, unit);
    const bool waits = std::any_of(tiles.begin(), tiles.end(),
                                   [&](const Tile& tile) { return is_own(rank, tile); });
    if (!block.has_pushed) {
      for (const Tile& tile : tiles) owe(rank, block, tile);
      block.has_pushed = true;
      if (waits) return true;
    }
    for (const Tile& tile : tiles)
      if (is_own(rank, tile) && !is_told(rank, key(tile))) return false;
    for (const Tile& tile : tiles) end(rank, tile);
    block.has_pushed = false;
    ++block.next;
    return true;
  }
  /// What others wait for goes to who takes it there.
  void owe(int32_t rank, Block& block, const Tile& tile) {
    if (world_.op != Op::kExchange && tile.shard == rank) return;
    if (world_.batches == 0) return block.outbox.push_back(key(tile));
    const int32_t batch = tile.shard * batches_.per_shard + tile.index / batches_.tiles;
    ++finished_[static_cast<size_t>(rank)][static_cast<size_t>(batch)];
  }
  void end(int32_t rank, const Tile& tile) {
    const int32_t epoch = epoch_[static_cast<size_t>(rank)];
    if (is_own(rank, tile)) read_[static_cast<size_t>(rank)][key(tile)] = epoch;
    if (++computed_[static_cast<size_t>(rank)][key(tile)] != epoch)
      wrong_ = "a tile was computed twice";
  }

  bool push(int32_t rank, int32_t number) {
    Block& block = blocks_[static_cast<size_t>(rank)][static_cast<size_t>(number)];
    if (block.outbox.empty() || random_() % 3 == 0) return !block.outbox.empty();
    const size_t tile = block.outbox.front();
    block.outbox.pop_front();
    const auto owner = static_cast<int32_t>(tile) / schedules_[0].tiles_per_shard();
    for (int32_t to = 0; to < world_.ranks; ++to)
      if (to != rank && (world_.op == Op::kExchange || to == owner)) tell(rank, to, tile);
    return true;
  }
  /// The engines take pushes by turns, as src/overlap/calls.cc has their streams do it.
  const Push* next_push(int32_t rank, size_t engine) const {
    const size_t next = engines_[static_cast<size_t>(rank)][engine] * kEngines + engine;
    const std::vector<Push>& pushes = pushes_[static_cast<size_t>(rank)];
    return next < pushes.size() ? &pushes[next] : nullptr;
  }
  bool take(int32_t rank, size_t engine) {
    const Push* push = next_push(rank, engine);
    if (push == nullptr || epoch_[static_cast<size_t>(rank)] > world_.epochs) return false;
    const int32_t made = finished_[static_cast<size_t>(rank)][static_cast<size_t>(push->counter)];
    if (2 * made < push->halves) return false;
    for (int32_t half = push->first; half < push->first + push->halves; half += 2)
      tell(rank, push->shard, key({push->shard, 0, 0, half / 2}));
    ++engines_[static_cast<size_t>(rank)][engine];
    return true;
  }
  void tell(int32_t rank, int32_t to, size_t tile) {
    const int32_t epoch = epoch_[static_cast<size_t>(rank)];
    if (read_[static_cast<size_t>(to)][tile] < epoch - world_.slots)
      wrong_ = "a part was written over before it was read";
    told_[static_cast<size_t>(to)][static_cast<size_t>(rank)][tile] = epoch;
  }

  /// A rank's next launch begins when all of its blocks and pushers have ended.
  void end_epochs() {
    for (int32_t r = 0; r < world_.ranks; ++r) {
      bool is_over = true;
      for (int32_t b = 0; b < world_.blocks; ++b) {
        const Block& block = blocks_[static_cast<size_t>(r)][static_cast<size_t>(b)];
        is_over = is_over && block.outbox.empty() && segment_of(block, b).unit < 0;
      }
      for (size_t e = 0; e < kEngines; ++e) is_over = is_over && next_push(r, e) == nullptr;
      if (!is_over || epoch_[static_cast<size_t>(r)] > world_.epochs) continue;
      ++epoch_[static_cast<size_t>(r)];
      engines_[static_cast<size_t>(r)].assign(kEngines, 0);
      std::fill(finished_[static_cast<size_t>(r)].begin(), finished_[static_cast<size_t>(r)].end(),
                0);
      for (Block& block : blocks_[static_cast<size_t>(r)]) block = {};
    }
  }

  const World world_;
  std::mt19937 random_;
  std::vector<Schedule> schedules_;
  std::vector<std::vector<Block>> blocks_;               // [rank][block]
  std::vector<std::vector<std::vector<int32_t>>> told_;  // [at][from][tile]: the epoch
  std::vector<std::vector<int32_t>> read_;      // [at][tile]: the last epoch that was added
  std::vector<std::vector<int32_t>> computed_;  // [rank][tile]: how often
  std::vector<std::vector<int32_t>> summed_;    // [rank][block]: the epoch of its sum
  std::vector<std::vector<Push>> pushes_;       // [rank]: of an epoch
  std::vector<std::vector<size_t>> engines_;    // [rank][engine]: how many it has taken
  std::vector<std::vector<int32_t>> finished_;  // [rank][batch]: tiles
  BatchShape batches_{};
  Split split_{};
  std::vector<int32_t> epoch_;  // of every rank
  std::string wrong_;
};

}  // namespace braid::overlap
