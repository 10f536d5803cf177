// The schedule over nodes, run by a simulator: every rank does what coll/nodes/schedule.h says, and
// a seed chooses what moves next. Channels between two ranks hold a few pieces, as lanes do; the
// receiver of an operand keeps its slot until the sum is whole, for up to half of them. When nothing
// can move any more, every block must be everywhere once, every operand in its sum once, and every
// channel empty: a deadlock is a run that ends with something left.
#include "coll/nodes/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/sanitizer.h"
#include "plan/nodes.h"

namespace braid::coll::nodes {
namespace {

enum class Kind : uint8_t { kData, kOperand };
struct Piece {
  Kind kind;
  int block;
  int cell;
};
struct Case {
  NodeMap map;
  int cells = 1;  // of a block
  int depth = 1;  // pieces that a channel holds
  unsigned seed = 1;
};

/// From one rank to another: what waits to be put, and what was put and not released.
struct Channel {
  std::deque<Piece> queued;
  std::deque<Piece> posted;
  int held = 0;
};

class Simulator {
 public:
  explicit Simulator(const Case& c)
      : map_(c.map),
        n_(c.map.size()),
        cells_(c.cells),
        depth_(c.depth),
        random_(c.seed),
        channels_(static_cast<size_t>(n_ * n_)),
        data_(static_cast<size_t>(n_ * n_ * c.cells), 0),
        inside_(static_cast<size_t>(n_ * map_.num_nodes * c.cells)),
        across_(static_cast<size_t>(n_ * c.cells)) {}

  void all_gather() {
    for (int rank = 0; rank < n_; ++rank)
      for (int cell = 0; cell < cells_; ++cell) spread(rank, cell);
    run();
    for (const int times : data_) ASSERT_LE(times, 1);
    for (int rank = 0; rank < n_; ++rank)
      for (int block = 0; block < n_; ++block)
        for (int cell = 0; cell < cells_; ++cell)
          ASSERT_EQ(data_[data_index(rank, block, cell)], rank == block ? 0 : 1)
              << "rank " << rank << " block " << block;
  }

  /// Also all_reduce: every reduced cell goes on as in an all_gather.
  void reduce_scatter(bool and_gather) {
    and_gather_ = and_gather;
    for (int rank = 0; rank < n_; ++rank)
      for (int i = 0; i < map_.num_nodes; ++i)
        for (int step = 1; step < map_.per_node; ++step) {
          const int peer = node_peer(map_, rank, step);
          const int block = map_.rank_at(reduced_node(map_, rank, i), map_.local_of(peer));
          ASSERT_EQ(node_reducer(map_, rank, block), peer);
          for (int cell = 0; cell < cells_; ++cell) push(rank, peer, {Kind::kOperand, block, cell});
        }
    run();
    for (const Sum& sum : across_) ASSERT_TRUE(sum.is_done);
    for (const Sum& sum : inside_) ASSERT_TRUE(sum.is_done);
    if (!and_gather) return;
    for (int rank = 0; rank < n_; ++rank)
      for (int block = 0; block < n_; ++block)
        for (int cell = 0; cell < cells_; ++cell)
          ASSERT_EQ(data_[data_index(rank, block, cell)], rank == block ? 0 : 1);
  }

  /// Cells that left the busiest node over its cable; those that ranks of one node sent each other,
  /// of the busiest rank.
  int64_t most_over_cable() const { return most(over_cable_); }
  int64_t most_inside() const { return most(inside_sent_); }

 private:
  struct Sum {
    std::set<int> operands;
    std::vector<Channel*> holders;
    bool is_done = false;
  };
  static int64_t most(const std::map<int, int64_t>& counts) {
    int64_t most = 0;
    for (const auto& [key, count] : counts) most = std::max(most, count);
    return most;
  }
  size_t data_index(int rank, int block, int cell) const {
    return static_cast<size_t>((rank * n_ + block) * cells_ + cell);
  }
  Sum& inside(int rank, int node, int cell) {
    return inside_[static_cast<size_t>((rank * map_.num_nodes + node) * cells_ + cell)];
  }
  Sum& across(int rank, int cell) { return across_[static_cast<size_t>(rank * cells_ + cell)]; }

  void push(int from, int to, const Piece& piece) {
    ASSERT_NE(from, to);
    // Only ranks of one node or of one rail speak to each other.
    ASSERT_TRUE(map_.share_node(from, to) || map_.share_rail(from, to));
    if (map_.share_node(from, to)) {
      ++inside_sent_[from];
    } else {
      ++over_cable_[map_.node_of(from)];
    }
    const auto index = static_cast<size_t>(from * n_ + to);
    channels_[index].queued.push_back(piece);
    touch(index);
  }
  void touch(size_t index) { ready_.push_back(index); }

  /// A rank's own cell to its node and along its rail.
  void spread(int rank, int cell) {
    for (int step = 1; step < map_.per_node; ++step)
      push(rank, node_peer(map_, rank, step), {Kind::kData, rank, cell});
    for (int step = 1; step < map_.num_nodes; ++step) {
      const int to = rail_to(map_, rank, step);
      ASSERT_EQ(rail_from(map_, to, step), rank);
      push(rank, to, {Kind::kData, rank, cell});
    }
  }

  void run() {
    while (!ready_.empty()) {
      const size_t pick = std::uniform_int_distribution<size_t>(0, ready_.size() - 1)(random_);
      const size_t index = ready_[pick];
      ready_[pick] = ready_.back();
      ready_.pop_back();
      move(index);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const Channel& channel : channels_) {
      ASSERT_TRUE(channel.queued.empty()) << "a deadlock";
      ASSERT_TRUE(channel.posted.empty());
      ASSERT_EQ(channel.held, 0);
    }
  }

  /// Puts one piece if the channel has room, or delivers one, as the seed says.
  void move(size_t index) {
    Channel& channel = channels_[index];
    const bool has_room =
        static_cast<int>(channel.posted.size()) + channel.held < depth_ && !channel.queued.empty();
    if (has_room && (channel.posted.empty() || random_() % 2 == 0)) {
      channel.posted.push_back(channel.queued.front());
      channel.queued.pop_front();
    } else if (!channel.posted.empty()) {
      const Piece piece = channel.posted.front();
      channel.posted.pop_front();
      arrive(static_cast<int>(index) / n_, static_cast<int>(index) % n_, piece, channel);
    } else {
      return;  // a sum that becomes whole touches the channels that it held
    }
    touch(index);
  }

  void arrive(int from, int to, const Piece& piece, Channel& channel) {
    if (piece.kind == Kind::kOperand) return add_operand(from, to, piece, channel);
    ++data_[data_index(to, piece.block, piece.cell)];
    if (map_.share_node(to, from)) return;  // what came along the rail goes on
    for (int step = 1; step < map_.per_node; ++step) push(to, node_peer(map_, to, step), piece);
  }

  void add_operand(int from, int to, const Piece& piece, Channel& channel) {
    const bool is_inside = map_.share_node(from, to);
    ASSERT_TRUE(is_inside ? map_.share_rail(piece.block, to) : piece.block == to);
    Sum& sum =
        is_inside ? inside(to, map_.node_of(piece.block), piece.cell) : across(to, piece.cell);
    if (channel.held < depth_ / 2) {
      ++channel.held;
      sum.holders.push_back(&channel);
    }
    add(sum, is_inside ? map_.local_of(from) : map_.node_of(from));
    if (is_inside) {
      end_inside(to, map_.node_of(piece.block), piece.cell);
    } else {
      end_across(to, piece.cell);
    }
  }

  void add(Sum& sum, int operand) {
    ASSERT_FALSE(sum.is_done);
    ASSERT_TRUE(sum.operands.insert(operand).second) << "an operand twice";
  }

  bool is_whole(Sum& sum, int others) {
    if (static_cast<int>(sum.operands.size()) < others) return false;
    sum.is_done = true;
    for (Channel* holder : sum.holders) {
      --holder->held;
      touch(static_cast<size_t>(holder - channels_.data()));
    }
    sum.holders.clear();
    return true;
  }

  void end_inside(int rank, int node, int cell) {
    if (!is_whole(inside(rank, node, cell), map_.per_node - 1)) return;
    const int owner = map_.rank_at(node, map_.local_of(rank));
    if (owner != rank) return push(rank, owner, {Kind::kOperand, owner, cell});
    add(across(rank, cell), map_.node_of(rank));
    end_across(rank, cell);
  }

  void end_across(int rank, int cell) {
    if (is_whole(across(rank, cell), map_.num_nodes) && and_gather_) spread(rank, cell);
  }

  NodeMap map_;
  int n_;
  int cells_;
  int depth_;
  bool and_gather_ = false;
  std::mt19937 random_;
  std::vector<Channel> channels_;
  std::vector<size_t> ready_;  // channels in which something may move
  std::vector<int> data_;
  std::vector<Sum> inside_, across_;
  std::map<int, int64_t> over_cable_, inside_sent_;
};

/// One element a cell: bytes are cells.
plan::NodeTraffic staged(plan::Op op, const Case& c) {
  const auto total = static_cast<uint64_t>(c.map.size() * c.cells);
  return plan::staged_traffic({op, total, c.map.size()}, {c.map.num_nodes, c.map.per_node});
}

void expect_traffic(const Simulator& run, plan::Op op, const Case& c) {
  const plan::NodeTraffic expected = staged(op, c);
  ASSERT_EQ(static_cast<double>(run.most_over_cable()), expected.cable_bytes);
  ASSERT_EQ(static_cast<double>(run.most_inside()), expected.inside_bytes);
}

void check_all(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.map.num_nodes << " x " << c.map.per_node << ", " << c.cells
                                  << " cells, depth " << c.depth);
  Simulator gathered(c), scattered(c), reduced(c);
  gathered.all_gather();
  expect_traffic(gathered, plan::Op::kAllGather, c);
  scattered.reduce_scatter(false);
  expect_traffic(scattered, plan::Op::kReduceScatter, c);
  reduced.reduce_scatter(true);
  expect_traffic(reduced, plan::Op::kAllReduce, c);
}

TEST(NodeSchedule, EveryBlockOnceForAllShapes) {
  constexpr int kMostNodes = kIsSanitized ? 5 : 16;  // arithmetic of one thread
  for (int k = 2; k <= kMostNodes; ++k)
    for (int g = 2; g <= 8; ++g) {
      // Large shapes have many pieces with one cell already.
      const bool is_large = k * g > 32;
      for (const int cells : is_large ? std::vector<int>{1} : std::vector<int>{1, 2, 5})
        for (const int depth : {1, 2, 5}) {
          if (is_large && depth == 5) continue;
          check_all({{k, g}, cells, depth, static_cast<unsigned>(k * 100 + g)});
          if (HasFatalFailure()) return;
        }
    }
}

TEST(NodeSchedule, AnyOrderOfArrivals) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    check_all({{3, 4}, 3, 2, seed});
    if (HasFatalFailure()) return;
  }
}

TEST(NodeMap, RanksInRegularOrderHaveOne) {
  using fabric::node_map_of;
  const std::vector<int> two_of_three{0, 0, 0, 1, 1, 1}, uneven{0, 0, 1}, taking_turns{0, 1, 0, 1};
  EXPECT_EQ(node_map_of(two_of_three), (NodeMap{2, 3}));
  EXPECT_TRUE(node_map_of(two_of_three).has_stages());
  EXPECT_EQ(node_map_of(uneven), (NodeMap{1, 3}));
  EXPECT_EQ(node_map_of(taking_turns), (NodeMap{1, 4}));
  EXPECT_FALSE(node_map_of(std::vector<int>{0, 1, 2}).has_stages());
  EXPECT_EQ(node_map_of({}), (NodeMap{1, 1}));
}

}  // namespace
}  // namespace braid::coll::nodes
