// What every lane promises in transport/lane.h, run on every lane of links.h. A new lane adds a line
// there and is held to all of it; a power that a lane does not claim is not used above, so here it must at
// least be refused cleanly.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "conformance/links.h"
#include "support/lane_ends.h"

namespace braid::test {
namespace {

using transport::Arrival;
using transport::Lane;
using transport::PeerSet;
using transport::PutResult;

class LaneTest : public ::testing::TestWithParam<std::tuple<LaneKind, int>> {
 protected:
  static const LaneKind& kind() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }
  static void run(const std::function<void(Lane&, group::Group&)>& body) {
    run_lane_ranks(kind(), size(), body);
  }
};

int next_of(const group::Group& group) { return (group.rank() + 1) % group.size(); }
int previous_of(const group::Group& group) {
  return (group.rank() + group.size() - 1) % group.size();
}

/// Puts to `peer` until the lane refuses; returns how many it took.
uint32_t fill(Lane& lane, int self, PeerSet peers, uint64_t first_number, size_t bytes) {
  uint32_t taken = 0;
  while (taken <= lane.caps().depth_pieces &&
         put_once(lane, self, peers, first_number + taken, bytes) == PutResult::kAccepted)
    ++taken;
  return taken;
}

TEST_P(LaneTest, EndsAgreeOnNameAndCaps) {
  run([](Lane& lane, group::Group& group) {
    auto names = group.exchange("names", lane.name(), test_deadline());
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) EXPECT_EQ(name, lane.name());
    EXPECT_GE(lane.caps().max_piece_bytes, kTestSlotBytes - transport::PacedLane::kTrailerBytes);
    EXPECT_EQ(lane.caps().depth_pieces, kTestDepth);
    EXPECT_EQ(lane.caps().is_paced, kind().is_paced);
    EXPECT_EQ(lane.available(group.rank()), 0U);
  });
}

TEST_P(LaneTest, FreshLaneIsEmptyAndHealthy) {
  run([](Lane& lane, group::Group& group) {
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      EXPECT_TRUE(lane.health(peer).ok());
      EXPECT_EQ(lane.available(peer), 0U);
      EXPECT_EQ(lane.posted(peer), 0U);
      EXPECT_EQ(lane.acked(peer), 0U);
      lane.for_each_unacked(peer, [](const Arrival&) { ADD_FAILURE() << "nothing was put"; });
    }
  });
}

TEST_P(LaneTest, EverySizeArrivesWholeAndInOrder) {
  run([](Lane& lane, group::Group& group) {
    const size_t most = lane.caps().max_piece_bytes;
    const std::vector<size_t> sizes = {0, 1, 31, 63, 64, 65, 1000, most - 1, most, 0, most};
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_TRUE(put(lane, group.rank(), PeerSet::only(next_of(group)), i, sizes[i]));
      receive(lane, previous_of(group), i, sizes[i]);
    }
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(next_of(group)) == sizes.size(); }));
  });
}

TEST_P(LaneTest, RingsWrapManyTimes) {
  run([](Lane& lane, group::Group& group) {
    const uint64_t count = 40 * lane.caps().depth_pieces + 3;
    uint64_t sent = 0, got = 0;
    const auto bytes = [](uint64_t number) { return number * 37 % 1500; };
    const int to = next_of(group), from = previous_of(group);
    ASSERT_TRUE(progress_until(lane, [&] {
      if (sent < count && put_once(lane, group.rank(), PeerSet::only(to), sent, bytes(sent)) ==
                              PutResult::kAccepted)
        ++sent;
      if (lane.available(from) > 0) {
        EXPECT_TRUE(is_piece(lane.at(from, 0), from, got, bytes(got)));
        lane.release(from, 1);
        ++got;
      }
      return sent == count && got == count;
    }));
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(to) == count; }));
    EXPECT_EQ(lane.posted(to), count);
  });
}

TEST_P(LaneTest, FullExactlyAtDepthAndFreeAgainByRelease) {
  run([](Lane& lane, group::Group& group) {
    const uint32_t depth = lane.caps().depth_pieces;
    const int to = next_of(group), from = previous_of(group);
    EXPECT_EQ(fill(lane, group.rank(), PeerSet::only(to), 0, 100), depth);
    EXPECT_EQ(lane.posted(to), depth);
    EXPECT_EQ(lane.acked(to), 0U);
    ASSERT_TRUE(progress_until(lane, [&] { return lane.available(from) == depth; }));
    EXPECT_EQ(put_once(lane, group.rank(), PeerSet::only(to), depth, 100), PutResult::kFull);
    EXPECT_EQ(lane.acked(to), 0U) << "arrived is not released";
    meet(lane, group, "all are full");

    lane.release(from, 3);
    ASSERT_TRUE(progress_until(lane, [&] { return lane.acked(to) == 3; }));
    EXPECT_EQ(fill(lane, group.rank(), PeerSet::only(to), depth, 100), 3U);
    meet(lane, group, "all are full again");
    for (uint64_t number = 3; number < depth + 3; ++number) receive(lane, from, number, 100);
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(to) == depth + 3; }));
  });
}

TEST_P(LaneTest, UnackedPiecesStayReadableOldestFirst) {
  run([](Lane& lane, group::Group& group) {
    const int to = next_of(group), from = previous_of(group);
    const auto bytes = [](uint64_t number) { return 100 * number + 1; };
    for (uint64_t number = 0; number < 5; ++number)
      ASSERT_TRUE(put(lane, group.rank(), PeerSet::only(to), number, bytes(number)));
    ASSERT_TRUE(progress_until(lane, [&] { return lane.available(from) == 5; }));
    lane.release(from, 2);
    ASSERT_TRUE(progress_until(lane, [&] { return lane.acked(to) == 2; }));
    uint64_t number = 2;
    lane.for_each_unacked(to, [&](const Arrival& piece) {
      EXPECT_TRUE(is_piece(piece, group.rank(), number, bytes(number)));
      ++number;
    });
    EXPECT_EQ(number, 5U);
    meet(lane, group, "unacked were read");
    lane.release(from, 3);
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(to) == 5; }));
    lane.for_each_unacked(to, [](const Arrival&) { ADD_FAILURE() << "all were released"; });
  });
}

TEST_P(LaneTest, LookAheadWindowIsStableUntilRelease) {
  run([](Lane& lane, group::Group& group) {
    const uint32_t depth = lane.caps().depth_pieces;
    const int to = next_of(group), from = previous_of(group);
    for (uint64_t round = 0; round < 6;
         ++round) {  // the window lies across the ring's end in some rounds
      const uint64_t first = round * (depth - 1);
      for (uint64_t i = 0; i < depth - 1; ++i)
        ASSERT_TRUE(put(lane, group.rank(), PeerSet::only(to), first + i, 64 + i));
      ASSERT_TRUE(progress_until(lane, [&] { return lane.available(from) >= depth - 1; }));
      const Arrival oldest = lane.at(from, 0);
      for (uint32_t i = depth - 1; i-- > 0;)
        EXPECT_TRUE(is_piece(lane.at(from, i), from, first + i, 64 + i));
      lane.progress();
      EXPECT_TRUE(is_piece(oldest, from, first, 64));
      const uint32_t there = lane.available(from);  // one more may be here: the peer's next round
      lane.release(from, depth - 1);
      EXPECT_EQ(lane.available(from), there - (depth - 1));
    }
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(to) == 6 * (depth - 1); }));
  });
}

TEST_P(LaneTest, OnePutReachesEveryPeer) {
  run([](Lane& lane, group::Group& group) {
    const PeerSet all = PeerSet::all_but(group.rank(), group.size());
    for (uint64_t number = 0; number < 30; ++number) {
      ASSERT_TRUE(put(lane, group.rank(), all, number, 10 * number));
      for (int src = 0; src < group.size(); ++src)
        if (src != group.rank()) receive(lane, src, number, 10 * number);
    }
    for (int peer = 0; peer < group.size(); ++peer)
      if (peer != group.rank()) {
        EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(peer) == 30; }));
      }
  });
}

// Every put names another subset; nobody sees a piece that was not for it, and order holds for
// each.
TEST_P(LaneTest, PutsToChangingSubsetsReachExactlyThem) {
  run([](Lane& lane, group::Group& group) {
    const int self = group.rank();
    const auto is_for = [&](int src, uint64_t number, int dst) {
      return dst != src && (number * 5 + 3) >> dst & 1;
    };
    constexpr uint64_t kCount = 64;
    std::vector<uint64_t> next(static_cast<size_t>(group.size()), 0);
    const auto skip_to_mine = [&](int src) {
      uint64_t& number = next[static_cast<size_t>(src)];
      while (number < kCount && !is_for(src, number, self)) ++number;
      return number;
    };
    uint64_t sent = 0;
    ASSERT_TRUE(progress_until(lane, [&] {
      PeerSet peers;
      for (int dst = 0; dst < group.size(); ++dst)
        if (sent < kCount && is_for(self, sent, dst)) peers = peers.with(dst);
      if (sent < kCount &&
          (peers.empty() || put_once(lane, self, peers, sent, sent) == PutResult::kAccepted))
        ++sent;
      bool is_done = sent == kCount;
      for (int src = 0; src < group.size(); ++src) {
        if (src == self) continue;
        if (skip_to_mine(src) < kCount && lane.available(src) > 0) {
          const uint64_t number = next[static_cast<size_t>(src)]++;
          EXPECT_TRUE(is_piece(lane.at(src, 0), src, number, number));
          lane.release(src, 1);
        }
        is_done &= skip_to_mine(src) == kCount;
      }
      return is_done;
    }));
    for (int peer = 0; peer < group.size(); ++peer)
      if (peer != self) {
        EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(peer) == lane.posted(peer); }));
        EXPECT_EQ(lane.available(peer), 0U);
      }
  });
}

TEST_P(LaneTest, PutToSeveralIsAllOrNone) {
  if (size() < 3) GTEST_SKIP() << "needs two peers";
  run([](Lane& lane, group::Group& group) {
    const uint32_t depth = lane.caps().depth_pieces;
    if (group.rank() == 0) {
      EXPECT_EQ(fill(lane, 0, PeerSet::only(1), 0, 64), depth);
      EXPECT_EQ(put_once(lane, 0, PeerSet::all_but(0, group.size()), 99, 64), PutResult::kFull);
      EXPECT_EQ(lane.posted(1), depth);
      EXPECT_EQ(lane.posted(2), 0U) << "a refused put must not reach the peers that had room";
      EXPECT_EQ(fill(lane, 0, PeerSet::only(2), 0, 64), depth)
          << "a full peer takes nothing from another";
      EXPECT_TRUE(
          progress_until(lane, [&] { return lane.acked(1) == depth && lane.acked(2) == depth; }));
    } else if (group.rank() <= 2) {
      for (uint64_t number = 0; number < depth; ++number) receive(lane, 0, number, 64);
      EXPECT_EQ(lane.available(0), 0U);
    }
  });
}

// The last rank never progresses: what is put to it waits, and the others do not notice.
TEST_P(LaneTest, SilentPeerLeavesTheOthersWorking) {
  if (size() < 3) GTEST_SKIP() << "needs two peers";
  run([](Lane& lane, group::Group& group) {
    const int silent = group.size() - 1, self = group.rank();
    const uint32_t depth = lane.caps().depth_pieces;
    if (self == silent) {
      EXPECT_TRUE(group.barrier("others are done", test_deadline()).ok());
      return;
    }
    const int to = (self + 1) % silent, from = (self + silent - 1) % silent;
    EXPECT_EQ(fill(lane, self, PeerSet::only(silent), 0, 200), depth);
    for (uint64_t number = 0; number < 10 * depth; ++number) {
      ASSERT_TRUE(put(lane, self, PeerSet::only(to), number, 200));
      receive(lane, from, number, 200);
    }
    EXPECT_EQ(put_once(lane, self, PeerSet::only(silent), depth, 200), PutResult::kFull);
    EXPECT_EQ(lane.acked(silent), 0U);
    uint64_t number = 0;
    lane.for_each_unacked(
        silent, [&](const Arrival& piece) { EXPECT_TRUE(is_piece(piece, self, number++, 200)); });
    EXPECT_EQ(number, depth);
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(to) == 10 * depth; }));
    meet(lane, group, "others are done");
  });
}

/// One rank of the storm: puts `kCount` pieces to every peer in random order, releases what arrives
/// at random times and in random numbers.
class StormRank {
 public:
  StormRank(Lane& lane, group::Group& group)
      : lane_(lane),
        self_(group.rank()),
        size_(group.size()),
        random_(static_cast<unsigned>(group.rank() + 1)),
        sent_(static_cast<size_t>(size_)),
        got_(static_cast<size_t>(size_)) {}

  void run() {
    ASSERT_TRUE(progress_until(lane_, [this] { return step(); }));
    for (int peer = 0; peer < size_; ++peer)
      if (peer != self_) {
        EXPECT_TRUE(progress_until(lane_, [&] { return lane_.acked(peer) == kCount; }));
      }
  }

 private:
  static constexpr uint64_t kCount = 400;

  size_t bytes_of(int src, uint64_t number) const {
    return (number * 7919 + static_cast<uint64_t>(src) * 104729) %
           (lane_.caps().max_piece_bytes + 1);
  }
  bool step() {
    const int peer = static_cast<int>(random_() % static_cast<unsigned>(size_));
    if (peer != self_) send_to(peer), take_from(peer);
    const auto all = [this](const std::vector<uint64_t>& counts) {
      for (int i = 0; i < size_; ++i)
        if (i != self_ && counts[static_cast<size_t>(i)] != kCount) return false;
      return true;
    };
    return all(sent_) && all(got_);
  }
  void send_to(int peer) {
    uint64_t& sent = sent_[static_cast<size_t>(peer)];
    if (sent < kCount && put_once(lane_, self_, PeerSet::only(peer), sent, bytes_of(self_, sent)) ==
                             PutResult::kAccepted)
      ++sent;
  }
  void take_from(int src) {
    uint64_t& got = got_[static_cast<size_t>(src)];
    const uint32_t there = lane_.available(src);
    if (there == 0 || random_() % 3 == 0) return;
    const uint32_t take = 1 + static_cast<uint32_t>(random_()) % there;
    for (uint32_t i = 0; i < take; ++i, ++got)
      EXPECT_TRUE(is_piece(lane_.at(src, i), src, got, bytes_of(src, got)));
    lane_.release(src, take);
  }

  Lane& lane_;
  const int self_, size_;
  std::minstd_rand random_;
  std::vector<uint64_t> sent_, got_;
};

TEST_P(LaneTest, StormOfAllToAll) {
  run([](Lane& lane, group::Group& group) {
    StormRank(lane, group).run();
    for (int peer = 0; peer < group.size(); ++peer)
      EXPECT_TRUE(peer == group.rank() || lane.health(peer).ok());
  });
}

TEST_P(LaneTest, WaitingRankSeesArrivalsByNextEventAlone) {
  run([](Lane& lane, group::Group& group) {
    // A waiter that polls only when next_event_ns() says so, and every 10 ms as a doorbell's sleep
    // would.
    ASSERT_TRUE(put(lane, group.rank(), PeerSet::only(next_of(group)), 0, 3000));
    const Deadline deadline = test_deadline();
    while (lane.available(previous_of(group)) == 0 && !deadline.passed()) {
      const int64_t until = std::min(lane.next_event_ns(), now_ns() + 10'000'000);
      while (now_ns() < until) std::this_thread::yield();
      lane.progress();
    }
    receive(lane, previous_of(group), 0, 3000);
    EXPECT_TRUE(progress_until(lane, [&] { return lane.acked(next_of(group)) == 1; }));
  });
}

INSTANTIATE_TEST_SUITE_P(Lanes, LaneTest,
                         ::testing::Combine(::testing::ValuesIn(links_between_cpus()),
                                            ::testing::Values(2, 4)),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", std::get<0>(instance.param).name,
                                              std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace braid::test
