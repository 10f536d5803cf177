// relay.cu for FakeCuda: the same flags and the same waits, on the thread of the rank that launches
// it. All of a rank's lanes go one after the other, which nobody waits for in a circle.
#pragma once

#include <atomic>
#include <cstring>
#include <thread>

#include "coll/relay/relay.h"
#include "support/fake_kernels.h"

namespace braid::test {

class FakeRelay {
 public:
  FakeRelay(const coll::RelayArgs& args, uint32_t num_blocks)
      : args_(args),
        team_(args.team),
        epoch_(args.state->epoch + 1),
        shape_{args.bytes, static_cast<uint32_t>(args.team.size - 1),
               num_blocks * coll::kBulkMovers} {}

  void run() {
    if (team_.has_failed()) return;
    if (args_.team.rank == args_.root) {
      send();
    } else if (pass_on()) {
      await_others();
    }
    args_.state->epoch = epoch_;
  }

 private:
  int other(uint32_t index) const {
    return (args_.root + 1 + static_cast<int>(index)) % args_.team.size;
  }
  uint64_t* flag(int at, int source, uint32_t lane) const {
    return args_.flags[at] + static_cast<uint64_t>(source) * coll::kMostRelayLanes + lane;
  }
  void tell(int to, uint32_t lane, uint32_t rows) const {
    std::atomic_ref(*flag(to, args_.team.rank, lane))
        .store(epoch_ << 32 | rows, std::memory_order_release);  // FakeWait::look()
  }
  bool await(int source, uint32_t lane, uint32_t rows) const {
    FakeWait wait(nvlink::Wait::kChunk, source, flag(args_.team.rank, source, lane),
                  epoch_ << 32 | rows, 0);
    for (;;) {
      const FakeWait::Outcome outcome = wait.look(team_);
      if (outcome != FakeWait::Outcome::kPending) return outcome == FakeWait::Outcome::kArrived;
      std::this_thread::yield();
    }
  }
  void copy(int to, const std::byte* from, uint32_t row, uint32_t owner) const {
    const uint64_t begin = shape_.begin_of(row, owner);
    if (const uint32_t bytes = shape_.bytes_of(row, owner); bytes > 0)
      std::memcpy(args_.place[to] + begin, from + begin, bytes);
  }
  template <typename Each>
  bool each_row(const Each& each) const {
    for (uint32_t lane = 0; lane < shape_.num_lanes; ++lane)
      for (uint32_t i = 0; i < shape_.rows_of(lane); ++i)
        if (!each(lane, lane + i * shape_.num_lanes, i + 1)) return false;
    return true;
  }
  void send() const {
    (void)each_row([&](uint32_t lane, uint32_t row, uint32_t rows) {
      for (uint32_t o = 0; o < shape_.num_others; ++o) {
        copy(other(o), args_.source, row, o);
        tell(other(o), lane, rows);
      }
      return true;
    });
  }
  bool pass_on() const {
    const int me = args_.team.rank;
    const auto own =
        static_cast<uint32_t>((me - args_.root - 1 + args_.team.size) % args_.team.size);
    return each_row([&](uint32_t lane, uint32_t row, uint32_t rows) {
      if (!await(args_.root, lane, rows)) return false;
      for (uint32_t o = 0; o < shape_.num_others; ++o) {
        if (o == own) continue;
        copy(other(o), args_.place[me], row, own);
        tell(other(o), lane, rows);
      }
      return true;
    });
  }
  void await_others() const {
    for (uint32_t o = 0; o < shape_.num_others; ++o)
      for (uint32_t lane = 0; lane < shape_.num_lanes; ++lane)
        if (const uint32_t rows = shape_.rows_of(lane);
            rows > 0 && other(o) != args_.team.rank && !await(other(o), lane, rows))
          return;
  }

  const coll::RelayArgs& args_;
  const FakeTeam team_;
  const uint64_t epoch_;
  const coll::RelayShape shape_;
};

inline void define_relay(sys::FakeCuda& cuda) {
  cuda.define_kernel("braid_relay", [](const sys::LaunchShape& shape, std::span<void*> args) {
    const auto relay = argument<coll::RelayArgs>(args, 0);
    FakeRelay(relay, shape.num_blocks).run();
    return Status();
  });
}

}  // namespace braid::test
