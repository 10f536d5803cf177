// Driving rdma lanes in tests: ranks as threads, and streams of position-dependent pieces that
// check themselves.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"
#include "support/piece_bytes.h"
#include "support/rows.h"
#include "support/thread_group.h"
#include "sys/fabric/api.h"
#include "transport/rdma/lane.h"

namespace braid::transport::rdma {

/// The bytes of piece `index` from `from` to `to`.
inline std::vector<std::byte> piece_of(int from, int to, uint64_t index, size_t bytes) {
  return test::piece_bytes_of(
      static_cast<uint64_t>(from) << 56 | static_cast<uint64_t>(to) << 48 | index, bytes);
}

/// Sizes walk through 0, 1, the limit and what lies between.
inline size_t piece_bytes(uint64_t index, uint32_t max_bytes) {
  constexpr uint64_t kStep = 2654435761;
  if (index % 16 == 0) return max_bytes;
  if (index % 16 == 5) return 0;
  if (index % 16 == 9) return 1;
  return index * kStep % (max_bytes + 1);
}

/// Sends `count` pieces to one peer and receives as many from it; trouble() says what was wrong
/// first.
class Stream {
 public:
  Stream(Lane& lane, int self, int peer, uint64_t count)
      : lane_(lane), self_(self), peer_(peer), count_(count) {}

  /// One round of put, progress, check; true when anything moved.
  bool step() {
    bool moved = false;
    while (sent_ < count_ && put()) moved = true;
    moved |= lane_.progress();
    while (received_ < count_ && lane_.available(peer_) > 0) {
      check(lane_.at(peer_, 0));
      lane_.release(peer_, 1);
      ++received_;
      moved = true;
    }
    return moved;
  }
  bool done() const { return received_ == count_ && lane_.acked(peer_) >= count_; }
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }

  bool run(int64_t timeout_ns) {
    const Deadline deadline = Deadline::after_ns(timeout_ns);
    while (!done() && trouble_.empty()) {
      if (deadline.passed())
        return fail("rank {}: sent {}, acked {}, received {} of {}; {}", self_, sent_,
                    lane_.acked(peer_), received_, count_, lane_.health(peer_).to_string());
      if (!step()) sched_yield();
    }
    // The last ack goes out at a later progress(); the peer waits for it.
    for (const Deadline end = Deadline::after_ns(20'000'000); !end.passed();) lane_.progress();
    return trouble_.empty();
  }
  const std::string& trouble() const { return trouble_; }

 private:
  bool put() {
    const size_t bytes = piece_bytes(sent_, lane_.caps().max_piece_bytes);
    std::vector<std::byte> payload = piece_of(self_, peer_, sent_, bytes);
    const PieceTag tag{{sent_, static_cast<uint64_t>(self_), static_cast<uint64_t>(peer_), ~sent_}};
    if (lane_.try_put(PeerSet::only(peer_), tag, payload) != PutResult::kAccepted) return false;
    std::fill(payload.begin(), payload.end(), std::byte{0xEE});  // the lane must have copied it
    ++sent_;
    return true;
  }
  void check(const Arrival& a) {
    if (a.tag.words[0] != received_ || a.tag.words[3] != ~received_ ||
        a.tag.words[1] != static_cast<uint64_t>(peer_))
      fail("rank {}: piece {} carries the tag of piece {} from {}", self_, received_,
           a.tag.words[0], a.tag.words[1]);
    if (a.payload.size() != piece_bytes(received_, lane_.caps().max_piece_bytes))
      fail("rank {}: piece {} has {} bytes", self_, received_, a.payload.size());
    const std::vector<std::byte> want = piece_of(peer_, self_, received_, a.payload.size());
    const uint64_t wrong = test::first_wrong(a.payload.data(), want.data(), want.size());
    if (wrong < want.size())
      fail("rank {}: piece {} from {} is wrong at byte {} of {}", self_, received_, peer_, wrong,
           a.payload.size());
  }
  template <typename... Args>
  bool fail(fmt::format_string<Args...> f, Args&&... args) {
    if (trouble_.empty()) trouble_ = fmt::format(f, std::forward<Args>(args)...);
    return false;
  }

  Lane& lane_;
  int self_;
  int peer_;
  uint64_t count_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  std::string trouble_;
};

/// A Stream with every peer at once.
class AllPairs {
 public:
  AllPairs(Lane& lane, int self, int size, uint64_t count) {
    for (int r = 0; r < size; ++r)
      if (r != self) streams_.emplace_back(lane, self, r, count);
  }
  bool run(int64_t timeout_ns) {
    const Deadline deadline = Deadline::after_ns(timeout_ns);
    while (!deadline.passed()) {
      bool moved = false, all = true;
      for (Stream& s : streams_) moved |= s.step(), all &= s.done();
      if (all) break;
      if (!moved) sched_yield();
    }
    for (Stream& s : streams_) s.run(std::max<int64_t>(deadline.left_ns(), 1'000'000));
    return trouble().empty();
  }
  std::string trouble() const {
    std::string out;
    for (const Stream& s : streams_) out += s.trouble();
    return out;
  }

 private:
  std::vector<Stream> streams_;
};

/// Connects `size` ranks as threads on `library` (null: the real one) and runs `body` on each.
inline void run_lanes(int size, const RdmaLaneOptions& options,
                      const std::function<void(RdmaLane&, int)>& body,
                      sys::FabricLibrary* library = nullptr) {
  if (library == nullptr) library = sys::real_fabric().value();
  test::run_thread_ranks(size, [&](group::Group& group) {
    auto lane = connect(*library, group, options, Deadline::after_ns(20'000'000'000));
    ASSERT_TRUE(lane.ok()) << lane.status().to_string();
    body(**lane, group.rank());
    EXPECT_TRUE(group.barrier("end", Deadline::after_ns(30'000'000'000)).ok());
  });
}

}  // namespace braid::transport::rdma
