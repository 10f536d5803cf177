// The kernels that GPUs talk to each other with, for FakeCuda: same memory, same protocol, same
// words in Fault, on the thread of the rank that launches them. So tests without a GPU judge
// what the host makes of them: which kernels, in which order, with which arguments.
//
// A kernel of several blocks is one loop over all of them that never blocks in one. FakeCuda runs
// work at once and in the order of its enqueuing: a missing wait between two streams does not show,
// but with OrderedCuda (ordered_cuda.h).
//
//   sys::FakeCuda cuda(4);
//   test::define_team_kernels(cuda);
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "sys/cuda/fake.h"
#include "transport/nvlink/barrier.h"
#include "transport/nvlink/short_blocks.h"
#include "transport/pcie/host_ring.h"

namespace braid::test {

/// Argument `index` of a launch, by value as the kernel gets it.
template <typename T>
T argument(std::span<void*> arguments, size_t index) {
  T value;
  std::memcpy(&value, arguments[index], sizeof value);
  return value;
}

/// Between two looks at a flag. Ranks are threads, often more than there are cores: one that waits
/// for long leaves them to those that work.
class Pause {
 public:
  void operator()() {
    if (++num_looks_ < kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  static constexpr int kYields = 50;
  int num_looks_ = 0;
};

/// What team.cuh does, on the CPU.
class FakeTeam {
 public:
  explicit FakeTeam(const nvlink::Team& team) : team_(team) {}

  bool has_failed() const {
    return std::atomic_ref(*team_.has_failed).load(std::memory_order_relaxed) != 0;
  }

  void give_up(nvlink::Wait wait, int peer, int block, uint64_t expected, uint64_t seen,
               bool aborted) const {
    std::atomic_ref(*team_.has_failed).store(1, std::memory_order_relaxed);
    device::Fault& note = *team_.fault;
    uint32_t untouched = 0;
    if (!std::atomic_ref(note.code).compare_exchange_strong(untouched, 1)) return;
    note.wait = wait;
    note.rank = team_.rank;
    note.peer = peer;
    note.block = block;
    note.aborted = aborted ? 1 : 0;
    note.expected = expected;
    note.seen = seen;
    std::atomic_ref(note.code).store(2, std::memory_order_release);  // Device::look_for_trouble()
  }

  const nvlink::Team& facts() const { return team_; }

 private:
  nvlink::Team team_;
};

/// One wait of one block that is looked at again and again. Pairs with the release of whoever
/// writes the flag.
class FakeWait {
 public:
  enum class Outcome { kPending, kArrived, kGaveUp };

  FakeWait(nvlink::Wait wait, int peer, uint64_t* flag, uint64_t expected, int block)
      : wait_(wait), peer_(peer), flag_(flag), expected_(expected), block_(block) {}

  Outcome look(const FakeTeam& team) {
    const uint64_t seen = std::atomic_ref(*flag_).load(std::memory_order_acquire);
    if (seen >= expected_) return Outcome::kArrived;
    auto* must_abort = const_cast<uint32_t*>(team.facts().must_abort);
    const bool aborted = std::atomic_ref(*must_abort).load(std::memory_order_relaxed) != 0;
    if (!aborted && now_ns() - start_ns_ < team.facts().timeout_ns) return Outcome::kPending;
    team.give_up(wait_, peer_, block_, expected_, seen, aborted);
    return Outcome::kGaveUp;
  }

 private:
  nvlink::Wait wait_;
  int peer_;
  uint64_t* flag_;
  uint64_t expected_;
  int block_;
  int64_t start_ns_ = now_ns();
};

/// barrier.cu. Thread p of the kernel is pass p of a loop, and signature_for(p) is what it
/// compares.
template <typename SignatureFor>
void fake_barrier(const FakeTeam& team, const nvlink::SignalPad& pad, int channel,
                  const nvlink::BarrierMask& mask, SignatureFor&& signature_for) {
  if (team.has_failed()) return;
  const int rank = team.facts().rank, size = team.facts().size;
  const uint64_t number = pad.numbers[channel] + 1;
  const auto signal_of = [&](int owner, int source) {
    return nvlink::signal_of(pad, owner, channel, source);
  };
  std::vector<std::pair<int, FakeWait>> waits;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const bool tells = (mask.tells >> peer & 1U) != 0;
    const bool hears = (mask.hears >> peer & 1U) != 0;
    nvlink::Signal* theirs = signal_of(peer, rank);
    if (tells && hears) theirs->signature[number % 2] = signature_for(peer);
    if (tells) std::atomic_ref(theirs->number).store(number, std::memory_order_release);
    if (!hears) continue;
    waits.emplace_back(
        peer, FakeWait(nvlink::Wait::kBarrier, peer, &signal_of(rank, peer)->number, number, 0));
  }
  Pause pause;
  while (!waits.empty()) {
    std::erase_if(waits, [&](auto& entry) {
      const FakeWait::Outcome outcome = entry.second.look(team);
      if (outcome != FakeWait::Outcome::kArrived) return outcome == FakeWait::Outcome::kGaveUp;
      const uint64_t meant = signal_of(rank, entry.first)->signature[number % 2];
      const bool tells = (mask.tells >> entry.first & 1U) != 0;
      const uint64_t ours = signature_for(entry.first);
      if (tells && meant != ours)
        team.give_up(nvlink::Wait::kAgreement, entry.first, 0, ours, meant, false);
      return true;
    });
    pause();
  }
  pad.numbers[channel] = number;
}

inline void fake_barrier(const FakeTeam& team, const nvlink::SignalPad& pad, int channel,
                         const nvlink::BarrierMask& mask) {
  fake_barrier(team, pad, channel, mask, [&](int) { return mask.signature; });
}

inline void fake_barrier_of_pairs(const FakeTeam& team, const nvlink::SignalPad& pad, int channel,
                                  const nvlink::PairSignatures& meant) {
  constexpr uint32_t kEveryone = (1U << nvlink::kMostRanks) - 1;
  fake_barrier(team, pad, channel, {0, kEveryone, kEveryone},
               [&](int peer) { return meant.signature[peer]; });
}

inline void fake_meet_pairs(const FakeTeam& team, const nvlink::SignalPad& pad, uint32_t with) {
  if (team.has_failed()) return;
  const int rank = team.facts().rank;
  const auto signal_of = [&](int owner, int source) {
    return nvlink::signal_of(pad, owner, nvlink::kPairChannel, source);
  };
  std::vector<FakeWait> waits;
  for (int peer = 0; peer < team.facts().size; ++peer) {
    if (peer == rank || (with >> peer & 1U) == 0) continue;
    const uint64_t number = ++pad.pair_numbers[peer];
    std::atomic_ref(signal_of(peer, rank)->number).store(number, std::memory_order_release);
    waits.emplace_back(nvlink::Wait::kBarrier, peer, &signal_of(rank, peer)->number, number, 0);
  }
  Pause pause;
  while (!waits.empty()) {
    std::erase_if(waits,
                  [&](FakeWait& wait) { return wait.look(team) != FakeWait::Outcome::kPending; });
    pause();
  }
}

/// short_blocks.cu: all of its blocks store, then each waits and copies.
inline void fake_short_blocks(const FakeTeam& team, const nvlink::SignalPad& pad, int channel,
                              const nvlink::ShortBlocks& blocks) {
  if (team.has_failed()) return;
  const int rank = team.facts().rank, num_parts = blocks.num_parts;
  const uint64_t number = pad.numbers[channel];
  const auto copy_part = [&](std::byte* to, const std::byte* from, uint64_t bytes, int part) {
    const uint64_t begin = nvlink::short_part_begin(bytes, part, num_parts);
    const uint64_t end = nvlink::short_part_begin(bytes, part + 1, num_parts);
    if (end > begin) std::memcpy(to + begin, from + begin, end - begin);
  };
  std::vector<std::tuple<const nvlink::ShortBlock*, int, FakeWait>> waits;
  for (int b = 0; b < blocks.num_blocks * num_parts; ++b) {
    const nvlink::ShortBlock& block = blocks.block[b / num_parts];
    const int part = b % num_parts;
    const bool is_own = block.peer == rank;
    copy_part(is_own ? block.in : block.theirs, block.out, block.out_bytes, part);
    if (is_own) continue;
    std::atomic_ref(*nvlink::short_flag(pad, block.peer, rank, part))
        .store(number, std::memory_order_release);
    waits.emplace_back(&block, part,
                       FakeWait(nvlink::Wait::kChunk, block.peer,
                                nvlink::short_flag(pad, rank, block.peer, part), number, b));
  }
  Pause pause;
  while (!waits.empty()) {
    std::erase_if(waits, [&](auto& entry) {
      auto& [block, part, wait] = entry;
      const FakeWait::Outcome outcome = wait.look(team);
      if (outcome == FakeWait::Outcome::kArrived)
        copy_part(block->in, block->ours, block->in_bytes, part);
      return outcome != FakeWait::Outcome::kPending;
    });
    pause();
  }
}

/// host_ring.cu: one block, which sends or receives one lane of one flow.
class FakeRingBlock {
 public:
  FakeRingBlock(const FakeTeam& team, const pcie::HostRing& ring, const pcie::Flow& flow, int lane,
                int num_lanes, int block)
      : team_(team),
        ring_(ring),
        flow_(flow),
        block_(block),
        progress_(flow.source != nullptr ? &ring.progress->sent[flow.key][lane]
                                         : &ring.progress->received[flow.sender][flow.key][lane]),
        number_(*progress_),
        at_(pcie::lane_begin(flow.bytes, lane, num_lanes)),
        end_(pcie::lane_begin(flow.bytes, lane + 1, num_lanes)) {
    std::byte* segment = ring.segment[flow.sender];
    counters_ = &reinterpret_cast<pcie::RingHead*>(segment)->counters[flow.key][lane];
    const uint64_t index = static_cast<uint64_t>(flow.key * ring.num_lanes + lane);
    slots_ = segment + sizeof(pcie::RingHead) + index * ring.num_slots * ring.slot_bytes;
    expect();
  }

  /// Moves what can be moved now. False: this block has ended.
  bool step() {
    for (;;) {
      if (at_ >= end_) {
        *progress_ = number_;
        return false;
      }
      while (!waits_.empty()) {
        const FakeWait::Outcome outcome = waits_.back().look(team_);
        if (outcome == FakeWait::Outcome::kPending) return true;
        if (outcome == FakeWait::Outcome::kGaveUp) return false;
        waits_.pop_back();
      }
      move_slot();
      expect();
    }
  }

 private:
  bool is_sender() const { return flow_.source != nullptr; }

  // What the slot `number_` waits for.
  void expect() {
    waits_.clear();
    if (at_ >= end_) return;
    if (!is_sender()) {
      waits_.emplace_back(nvlink::Wait::kSlotFull, flow_.sender, &counters_->full.value,
                          number_ + 1, block_);
      return;
    }
    if (number_ < ring_.num_slots) return;
    const int size = team_.facts().size;
    for (int reader = 0; reader < size; ++reader)
      if (reader != team_.facts().rank && (flow_.key == reader || flow_.key == size))
        waits_.emplace_back(nvlink::Wait::kSlotFree, reader, &counters_->free[reader].value,
                            number_ - ring_.num_slots + 1, block_);
  }

  void move_slot() {
    const uint64_t length = std::min<uint64_t>(ring_.slot_bytes, end_ - at_);
    std::byte* slot = slots_ + number_ % ring_.num_slots * ring_.slot_bytes;
    if (is_sender())
      std::memcpy(slot, flow_.source + at_, length);
    else
      std::memcpy(flow_.destination + at_, slot, length);
    uint64_t& done =
        is_sender() ? counters_->full.value : counters_->free[team_.facts().rank].value;
    std::atomic_ref(done).store(++number_, std::memory_order_release);  // FakeWait::look()
    at_ += length;
  }

  const FakeTeam& team_;
  const pcie::HostRing& ring_;
  const pcie::Flow& flow_;
  const int block_;
  uint64_t* progress_;
  uint64_t number_;
  uint64_t at_;
  const uint64_t end_;
  pcie::RingCounters* counters_;
  std::byte* slots_;
  std::vector<FakeWait> waits_;
};

inline void fake_host_ring(const FakeTeam& team, const pcie::HostRing& ring,
                           const pcie::Flows& flows, uint32_t num_blocks) {
  if (team.has_failed()) return;
  std::vector<FakeRingBlock> blocks;
  for (int b = 0; b < static_cast<int>(num_blocks); ++b)
    blocks.emplace_back(team, ring, flows.flow[b / flows.num_lanes], b % flows.num_lanes,
                        flows.num_lanes, b);
  std::vector<FakeRingBlock*> running;
  for (FakeRingBlock& block : blocks) running.push_back(&block);
  Pause pause;
  while (!running.empty()) {
    std::erase_if(running, [](FakeRingBlock* block) { return !block->step(); });
    pause();
  }
}

/// hold.cu.
inline void fake_hold(uint64_t* free_ns, uint64_t cost_ns) {
  if (cost_ns == 0) *free_ns = std::max(*free_ns, static_cast<uint64_t>(now_ns()));
  *free_ns += cost_ns;
  for (Pause pause; static_cast<uint64_t>(now_ns()) < *free_ns && cost_ns > 0;) pause();
}

/// braid_barrier and what else is in barrier.cu, braid_short_blocks, braid_hold, braid_local_copy,
/// braid_host_ring, and braid_longest_pause, which finds the GPU to be ours alone.
inline void define_team_kernels(sys::FakeCuda& cuda) {
  cuda.define_kernel("braid_barrier", [](const sys::LaunchShape&, std::span<void*> args) {
    fake_barrier(FakeTeam(argument<nvlink::Team>(args, 0)), argument<nvlink::SignalPad>(args, 1),
                 argument<int32_t>(args, 2), argument<nvlink::BarrierMask>(args, 3));
    return Status();
  });
  cuda.define_kernel("braid_barrier_of_pairs", [](const sys::LaunchShape&, std::span<void*> args) {
    fake_barrier_of_pairs(FakeTeam(argument<nvlink::Team>(args, 0)),
                          argument<nvlink::SignalPad>(args, 1), argument<int32_t>(args, 2),
                          argument<nvlink::PairSignatures>(args, 3));
    return Status();
  });
  cuda.define_kernel("braid_meet_pairs", [](const sys::LaunchShape&, std::span<void*> args) {
    fake_meet_pairs(FakeTeam(argument<nvlink::Team>(args, 0)), argument<nvlink::SignalPad>(args, 1),
                    argument<uint32_t>(args, 2));
    return Status();
  });
  cuda.define_kernel("braid_short_blocks", [](const sys::LaunchShape&, std::span<void*> args) {
    fake_short_blocks(FakeTeam(argument<nvlink::Team>(args, 0)),
                      argument<nvlink::SignalPad>(args, 1), argument<int32_t>(args, 2),
                      argument<nvlink::ShortBlocks>(args, 3));
    return Status();
  });
  cuda.define_kernel("braid_hold", [](const sys::LaunchShape&, std::span<void*> args) {
    fake_hold(argument<uint64_t*>(args, 0), argument<uint64_t>(args, 1));
    return Status();
  });
  cuda.define_kernel("braid_longest_pause", [](const sys::LaunchShape&, std::span<void*> args) {
    *argument<int64_t*>(args, 0) = 0;
    return Status();
  });
  cuda.define_kernel("braid_local_copy", [](const sys::LaunchShape&, std::span<void*> args) {
    std::memcpy(argument<std::byte*>(args, 0), argument<const std::byte*>(args, 1),
                argument<uint64_t>(args, 2));
    return Status();
  });
  for (const char* name : {"braid_host_ring", "braid_host_ring_bulk"})
    cuda.define_kernel(name, [](const sys::LaunchShape& shape, std::span<void*> args) {
      fake_host_ring(FakeTeam(argument<nvlink::Team>(args, 0)), argument<pcie::HostRing>(args, 1),
                     argument<pcie::Flows>(args, 2), shape.num_blocks);
      return Status();
    });
}

}  // namespace braid::test
