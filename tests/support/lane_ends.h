// Both ends of lanes under test: opens a lane of any kind (conformance/links.h has the list) on every rank (ranks are threads), puts
// and receives with deadlines, and makes payloads of which every byte depends on source, number and
// position.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "support/piece_bytes.h"
#include "support/rows.h"
#include "support/thread_group.h"
#include "transport/connect.h"
#include "transport/lane.h"
#include "transport/paced.h"

namespace braid::test {

/// Opens one rank's end of a lane. Collective.
using LaneEnds =
    std::function<Result<std::unique_ptr<transport::Lane>>(group::Group&, transport::Doorbell&)>;
struct LaneKind {
  const char* name;
  LaneEnds open;
  bool is_paced = false;
};
inline void PrintTo(const LaneKind& kind, std::ostream* out) { *out << kind.name; }

inline constexpr uint32_t kTestDepth = 5;  // odd, so that wraps fall on every slot
inline constexpr uint32_t kTestSlotBytes = 4096;

inline LaneEnds host_ends(decltype(&transport::connect_shm) connect) {
  return [connect](group::Group& group, transport::Doorbell& doorbell) {
    return connect(group, doorbell, {.slot_bytes = kTestSlotBytes, .depth_pieces = kTestDepth},
                   test_deadline());
  };
}
inline LaneEnds shm_ends() { return host_ends(transport::connect_shm); }
inline LaneEnds staged_ends() { return host_ends(transport::connect_staged); }
inline LaneEnds rdma_ends(const char* provider) {
  return [provider](group::Group& group, transport::Doorbell& /*doorbell*/) {
    transport::RdmaLaneOptions rdma;
    rdma.slot_bytes = kTestSlotBytes;
    rdma.depth_pieces = kTestDepth;
    rdma.provider = provider;
    return transport::connect_rdma(group, rdma, test_deadline());
  };
}
/// Fast enough that the clocks refuse nothing within a window, slow enough that every due time is
/// really computed.
inline LaneEnds paced_ends(const LaneEnds& open) {
  return [open](group::Group& group,
                transport::Doorbell& doorbell) -> Result<std::unique_ptr<transport::Lane>> {
    BRAID_ASSIGN_OR_RETURN(std::unique_ptr<transport::Lane> lane, open(group, doorbell));
    return transport::paced(std::move(lane), {.rate_gbps = 4, .latency_ns = 20'000}, group.size());
  };
}

/// Progresses until `done()`; false when that takes too long.
inline bool progress_until(transport::Lane& lane, const std::function<bool()>& done) {
  const Deadline deadline = test_deadline();
  while (!done()) {
    if (deadline.passed()) return false;
    if (!lane.progress()) std::this_thread::yield();
  }
  return true;
}

/// Meets the others while keeping the lane moving, as every wait above a lane does: a lane may tell
/// its acks only in progress(), so a rank that stopped calling it would leave its peers waiting.
inline void meet(transport::Lane& lane, group::Group& group, const std::string& topic) {
  auto met = std::async(std::launch::async, [&] { return group.barrier(topic, test_deadline()); });
  const auto is_over = [&] {
    return met.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  EXPECT_TRUE(progress_until(lane, is_over)) << topic;
  EXPECT_TRUE(met.get().ok()) << topic;
}

/// Runs `body(lane, group)` on every rank; lanes close only when all are done.
inline void run_lane_ranks(const LaneKind& kind, int size,
                           const std::function<void(transport::Lane&, group::Group&)>& body) {
  run_thread_ranks(size, [&](group::Group& group) {
    auto doorbell = transport::Doorbell::connect(group, test_deadline());
    ASSERT_TRUE(doorbell.ok()) << doorbell.status().to_string();
    auto lane = kind.open(group, **doorbell);
    ASSERT_TRUE(lane.ok()) << lane.status().to_string();
    body(**lane, group);
    meet(**lane, group, "close");
  });
}

inline std::vector<std::byte> make_piece(int src, uint64_t number, size_t bytes) {
  return piece_bytes_of(static_cast<uint64_t>(src) << 56 | number, bytes);
}
inline transport::PieceTag make_tag(int src, uint64_t number, size_t bytes) {
  return {{static_cast<uint64_t>(src), number, bytes, ~number}};
}

/// Whether `arrival` is piece `number` of `src`, whole.
inline ::testing::AssertionResult is_piece(const transport::Arrival& arrival, int src,
                                           uint64_t number, size_t bytes) {
  if (arrival.tag != make_tag(src, number, bytes))
    return ::testing::AssertionFailure()
           << "tag says source " << arrival.tag.words[0] << " number " << arrival.tag.words[1]
           << " bytes " << arrival.tag.words[2] << ", expected " << src << " " << number << " "
           << bytes;
  if (arrival.payload.size() != bytes)
    return ::testing::AssertionFailure()
           << "payload has " << arrival.payload.size() << " bytes, expected " << bytes;
  const std::vector<std::byte> expected = make_piece(src, number, bytes);
  const uint64_t wrong = first_wrong(arrival.payload.data(), expected.data(), bytes);
  if (wrong < bytes)
    return ::testing::AssertionFailure() << "piece " << number << " of rank " << src << ": byte "
                                         << wrong << " of " << bytes << " is wrong";
  return ::testing::AssertionSuccess();
}

inline transport::PutResult put_once(transport::Lane& lane, int self, transport::PeerSet peers,
                                     uint64_t number, size_t bytes) {
  const std::vector<std::byte> piece = make_piece(self, number, bytes);
  return lane.try_put(peers, make_tag(self, number, bytes),
                      piece);  // `piece` dies here: the lane must have copied it
}

/// Puts one piece, progressing while there is no room.
inline bool put(transport::Lane& lane, int self, transport::PeerSet peers, uint64_t number,
                size_t bytes) {
  return progress_until(lane, [&] {
    return put_once(lane, self, peers, number, bytes) == transport::PutResult::kAccepted;
  });
}

/// Receives the oldest piece of `src`, checks and releases it.
inline void receive(transport::Lane& lane, int src, uint64_t number, size_t bytes) {
  ASSERT_TRUE(progress_until(lane, [&] { return lane.available(src) > 0; }))
      << "no piece " << number;
  EXPECT_TRUE(is_piece(lane.at(src, 0), src, number, bytes));
  lane.release(src, 1);
}

}  // namespace braid::test
