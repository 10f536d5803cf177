// relay.cu for FakeCuda: the same flags and the same waits, on the thread of the rank that launches
// it. All of a rank's units go one after the other, which nobody waits for in a circle.
#pragma once

#include <atomic>
#include <cstring>

#include "coll/relay/relay.h"
#include "support/fake_kernels.h"

namespace braid::test {

class FakeRelay {
 public:
  explicit FakeRelay(const coll::RelayArgs& args)
      : args_(args), team_(args.team), epoch_(args.state->epoch + 1), shape_(args.shape) {}

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
  uint64_t* flag(int at, int source, uint32_t row) const {
    return args_.flags[at] + static_cast<uint64_t>(source) * coll::kMostRelayRows + row;
  }
  void tell(int to, uint32_t row) const {
    std::atomic_ref(*flag(to, args_.team.rank, row))
        .store(epoch_, std::memory_order_release);  // FakeWait::look()
  }
  bool await(int source, uint32_t row) const {
    FakeWait wait(nvlink::Wait::kChunk, source, flag(args_.team.rank, source, row), epoch_, 0);
    for (Pause pause;; pause()) {
      const FakeWait::Outcome outcome = wait.look(team_);
      if (outcome != FakeWait::Outcome::kPending) return outcome == FakeWait::Outcome::kArrived;
    }
  }
  void copy(int to, const std::byte* from, uint32_t row, uint32_t owner) const {
    const uint64_t begin = shape_.begin_of(row, owner);
    if (const uint32_t bytes = shape_.bytes_of(row, owner); bytes > 0)
      std::memcpy(args_.place[to] + begin, from + begin, bytes);
  }
  void send() const {
    for (uint32_t row = 0; row < shape_.num_rows(); ++row)
      for (uint32_t o = 0; o < shape_.num_others; ++o) {
        copy(other(o), args_.source, row, o);
        tell(other(o), row);
      }
  }
  bool pass_on() const {
    const int me = args_.team.rank;
    const auto own =
        static_cast<uint32_t>((me - args_.root - 1 + args_.team.size) % args_.team.size);
    for (uint32_t row = 0; row < shape_.num_rows(); ++row) {
      if (!await(args_.root, row)) return false;
      for (uint32_t o = 0; o < shape_.num_others; ++o) {
        if (o == own) continue;
        copy(other(o), args_.place[me], row, own);
        tell(other(o), row);
      }
    }
    return true;
  }
  void await_others() const {
    for (uint32_t o = 0; o < shape_.num_others; ++o)
      for (uint32_t row = 0; row < shape_.num_rows(); ++row)
        if (other(o) != args_.team.rank && !await(other(o), row)) return;
  }

  const coll::RelayArgs& args_;
  const FakeTeam team_;
  const uint64_t epoch_;
  const coll::RelayShape shape_;
};

inline void define_relay(sys::FakeCuda& cuda) {
  cuda.define_kernel("braid_relay", [](const sys::LaunchShape&, std::span<void*> args) {
    const auto relay = argument<coll::RelayArgs>(args, 0);
    FakeRelay(relay).run();
    return Status();
  });
}

}  // namespace braid::test
