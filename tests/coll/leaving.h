// Two ranks, of which rank 1 ends its part of a call and leaves at once, without a farewell, or dies,
// between rank 0's last look at its lanes and its question who is gone: what rank 1 put last is there,
// and nobody has seen it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "coll/ranks.h"
#include "coll/wire.h"
#include "support/lane_over.h"

namespace braid::test {

struct Leaving {
  const coll::PieceKind last_piece;
  const bool is_death;
  std::atomic<bool> is_gone{false};  // rank 1 has closed its comm
  std::atomic<bool> is_told{false};  // and rank 0 was answered so
};

class GroupOfOneWhoLeaves final : public ThreadGroup {
 public:
  GroupOfOneWhoLeaves(std::shared_ptr<ThreadHub> hub, int rank, Leaving& leaving)
      : ThreadGroup(std::move(hub), rank), leaving_(leaving) {}
  bool has_left(int rank) const noexcept override {
    return rank == 1 && !leaving_.is_death && is_told();
  }
  bool broken() const noexcept override {
    return ThreadGroup::broken() || (rank() == 0 && leaving_.is_death && is_told());
  }
  Status fate() const override { return broken() ? peer_lost("rank 1 died") : Status(); }

 private:
  bool is_told() const noexcept {
    if (leaving_.is_gone) leaving_.is_told = true;
    return leaving_.is_told;
  }

  Leaving& leaving_;
};

/// Shows rank 1's last piece, and what lies behind it, once rank 0 knows that rank 1 is gone.
class LaneSeenLate final : public LaneOver {
 public:
  LaneSeenLate(std::unique_ptr<transport::Lane> lane, Leaving& leaving)
      : LaneOver(std::move(lane)), leaving_(leaving) {}
  uint32_t available(int src) const override {
    const uint32_t all = below().available(src);
    if (leaving_.is_told) return all;
    for (uint32_t i = 0; i < all; ++i)
      if (const auto tag = coll::decode_tag(below().at(src, i).tag);
          tag.ok() && tag->kind == leaving_.last_piece)
        return i;
    return all;
  }

 private:
  Leaving& leaving_;
};

enum class Goes : uint8_t { kLeaves, kDies };

/// What rank 0's `body` comes to. Rank 1's succeeds, and `last_piece` is the last that it puts.
inline Status run_beside_one_who(Goes goes, coll::PieceKind last_piece, const Options& options,
                                 const std::function<Status(comm::Comm&)>& body) {
  Leaving leaving{last_piece, goes == Goes::kDies};
  auto hub = std::make_shared<ThreadHub>(2);
  Status found = internal_error("rank 0 did not come to its call");
  const auto run = [&](int rank) {
    auto comm = comm::Comm::create(std::make_unique<GroupOfOneWhoLeaves>(hub, rank, leaving),
                                   make_config(options));
    ASSERT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status().to_string();
    if (rank == 0) put_over_lanes<LaneSeenLate>(*comm.value(), leaving);
    const Status status = body(*comm.value());
    if (rank == 1) {
      EXPECT_TRUE(status.ok()) << status.to_string();
    } else {
      found = status;
    }
    EXPECT_TRUE(comm.value()->close(false).ok());
    if (rank == 1) leaving.is_gone = true;
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  return found;
}

}  // namespace braid::test
