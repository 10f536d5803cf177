// A phase as the blocks of a kernel go through it: room, flags, acks, as phases.h tells, by all
// threads of every block.
//
// Step     a part of a kernel whose end somebody hears of: copies pushed, slots read. Every block that
//          has that role (Roles) arrives at the end of every step, also when a wait ended in vain;
//          whichever is last tells the peers, for all. So there is nothing to reset and blocks need not
//          wait for each other. Blocks may be a step ahead of others, and no more: nobody sends round
//          j + 2 before all blocks of all ranks have taken j, this rank's too, and nobody takes j + 2
//          before all have sent it. So steps of sending and of taking, of even rounds and of odd ones,
//          are counted apart: of one count's steps none begins before all have done the one before.
//          tests/python/moe/test_gpu_rounds.py goes through orders of blocks.
// Order    what a block stored is before its arrival: all its threads meet, and one adds to the counter
//          with release and acquire, of this GPU. The last block so has all blocks' stores before it,
//          meets, and each of its threads releases one peer's flag, of the system (device::meet_in()).
// Failed   a wait that ended in vain marks the GPU, before its block arrives. The last block looks
//          for that mark and then tells nobody, so nothing that is not whole is taken for a phase.
#pragma once

#include "device/wait.cuh"
#include "moe/gpu/args.h"

namespace braid::moe::gpu {

using device::Wait;
// What a note's flag says besides: of a slot, that it is a window's; of words and arguments, which
// one, from 1. comm/device/fault_words.cc has their names.
inline constexpr int32_t kOfWindow = 1;

/// Of a loop's turns, those of this block: as equal as can be, in order. The last block has the last
/// turn, if there is any.
struct Share {
  int32_t begin, end;
  static __device__ __forceinline__ Share of(int32_t total, uint32_t block = blockIdx.x,
                                             uint32_t blocks = gridDim.x) {
    const auto all = static_cast<uint32_t>(total), each = all / blocks;
    const uint32_t shorter = blocks - (all - each * blocks);  // blocks, the first ones
    const uint32_t longer_before = max(block, shorter) - shorter;
    const uint32_t begin = block * each + longer_before;
    return {static_cast<int32_t>(begin),
            static_cast<int32_t>(begin + each + (block < shorter ? 0 : 1))};
  }
};

/// How blocks wait: as soon as can be, or so that others get on meanwhile (device::wait_gently()).
enum class Pace { kBrisk, kGentle };

/// Which blocks of a kernel send and which take. In one of several rounds some send, as many as fill
/// NVLink at most, and the rest take, so that NVLink is busy while what came is being read: blocks that
/// did both in turn would all do the same at a time. In one round there is nothing to do meanwhile, and
/// all do both.
struct Roles {
  uint32_t senders, takers;  // blocks: the first ones, the last ones
  static constexpr uint32_t kMostSenders = 32;
  /// `to_send`: blocks that should in one of several rounds, fewer than all.
  __device__ __forceinline__ static Roles of(int rounds, uint32_t to_send) {
    if (rounds == 1 || gridDim.x == 1) return {gridDim.x, gridDim.x};
    const uint32_t senders = min(to_send, kMostSenders);
    return {senders, gridDim.x - senders};
  }
  /// Of whom there are more than have something to do at a time.
  __device__ __forceinline__ Pace pace() const {
    return senders == gridDim.x ? Pace::kBrisk : Pace::kGentle;
  }
  __device__ __forceinline__ bool sends() const { return blockIdx.x < senders; }
  __device__ __forceinline__ bool takes() const { return blockIdx.x >= gridDim.x - takers; }
  /// This block's number among those that take.
  __device__ __forceinline__ uint32_t taker() const { return blockIdx.x - (gridDim.x - takers); }
  __device__ __forceinline__ Share share_to_send(int32_t total) const {
    return Share::of(total, blockIdx.x, senders);
  }
  __device__ __forceinline__ Share share_to_take(int32_t total) const {
    return Share::of(total, taker(), takers);
  }
};

inline constexpr int kWarps = kThreads / 32;
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x / 32); }
__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x % 32); }

__device__ __forceinline__ uint64_t* number_at(std::byte* window, uint64_t line) {
  return reinterpret_cast<uint64_t*>(window + line + kNumberOffset);
}
/// What another thread of this GPU may have written during this kernel, or a peer.
template <typename T>
__device__ __forceinline__ T seen(const T* at) {
  return *const_cast<const volatile T*>(at);
}

/// What a kernel starts from, for all threads of a block: in one order with State's first words, then
/// those of two tickets. One warp asks for all of it at once. If every warp of every block did, they
/// would be thousands of loads of one line, which come one after the other: 2 us on an H100.
struct StartFacts {
  uint64_t phase, call;
  StepCount sent[kHalves], taken[kHalves];
  Ticket ticket, of;
};
class StartReading {
 public:
  /// `ticket` and `of` or null.
  __device__ StartReading(const Team& team, const Ticket* ticket, const Ticket* of) {
    constexpr uint32_t kOfState = offsetof(StartFacts, ticket) / 8, kOfTicket = sizeof(Ticket) / 8;
    static_assert(offsetof(State, taken) == offsetof(StartFacts, taken));
    const uint32_t word = threadIdx.x;
    const uint64_t* at = nullptr;
    if (word < kOfState)
      at = &team.state->phase + word;
    else if (word < kOfState + kOfTicket && ticket != nullptr)
      at = &ticket->phase + (word - kOfState);
    else if (word >= kOfState + kOfTicket && word < sizeof(StartFacts) / 8 && of != nullptr)
      at = &of->phase + (word - kOfState - kOfTicket);
    if (at != nullptr) word_ = seen(at);
  }
  /// Threads meet before they look.
  __device__ void keep(StartFacts* known) const {
    if (threadIdx.x < sizeof(StartFacts) / 8) (&known->phase)[threadIdx.x] = word_;
  }

 private:
  uint64_t word_ = 0;
};

class Steps {
 public:
  /// `counts` [kHalves], as `known` has them. Steps of a kernel are numbered from 0; so many of its
  /// blocks come to the end of each.
  __device__ Steps(StepCount* counts, const StepCount* known, uint32_t blocks = gridDim.x)
      : counts_(counts), even_(known[0].settled), odd_(known[1].settled), blocks_(blocks) {}

  /// All threads. True in the last block to come here, which sees what all others have done.
  __device__ bool arrive(int step) const {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0)
      is_last = device::meet_in(&counts_[step % kHalves].arrived, 1) + 1 == target(step);
    __syncthreads();
    return is_last;
  }
  /// All threads, behind arrive(): until every block has come as far. False: in vain.
  __device__ bool await_all(const Team& team, int step) const {
    bool ok = true;
    if (threadIdx.x == 0)
      ok = device::wait_for(team.watch, &counts_[step % kHalves].arrived,
                            {Wait::kBarrier, target(step), team.rank, 0, 0});
    return __syncthreads_and(ok) != 0;
  }
  /// By one thread of the last block of the last of `steps` steps.
  __device__ void settle(int steps) const {
    if (steps > 0) counts_[0].settled = target((steps - 1) / kHalves * kHalves);
    if (steps > 1) counts_[1].settled = target(steps / kHalves * kHalves - 1);
  }

 private:
  __device__ uint64_t target(int step) const {
    return (step % kHalves == 0 ? even_ : odd_) +
           (static_cast<uint64_t>(step) / kHalves + 1) * blocks_;
  }
  StepCount* const counts_;
  const uint64_t even_, odd_;
  const uint32_t blocks_;
};

/// Numbers of a peer's signals, of both halves, and whether this GPU has failed: asked for before it is
/// known which half is meant, so that a kernel waits for cold memory once, not for one thing behind the
/// other.
struct SignalsSeen {
  uint64_t even = 0, odd = 0;
  bool has_failed = false;
  __device__ uint64_t of(uint64_t half) const { return half == 0 ? even : odd; }
};
/// By thread p, of peer p: its acks; its flags.
__device__ __forceinline__ SignalsSeen look_at_acks(const Team& team) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= team.layout.num_ranks) return {};
  std::byte* const own = team.windows[team.rank];
  return {device::load_relaxed(number_at(own, team.layout.ack_line(0, peer))),
          device::load_relaxed(number_at(own, team.layout.ack_line(1, peer))),
          device::has_failed(team.watch)};
}
__device__ __forceinline__ SignalsSeen look_at_flags(const Team& team) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= team.layout.num_ranks) return {};
  std::byte* const own = team.windows[team.rank];
  return {device::load_relaxed(number_at(own, team.layout.flag_line(0, peer))),
          device::load_relaxed(number_at(own, team.layout.flag_line(1, peer))),
          device::has_failed(team.watch)};
}

/// What the flags of a phase say, for all threads of a block.
struct Arrived {
  uint32_t rows[kMostRanks];
  uint32_t total_rows[kMostRanks];
  uint32_t num_tokens[kMostRanks];
};

class Phase {
 public:
  __device__ Phase(const Team& team, uint64_t number, uint64_t call, Pace pace = Pace::kBrisk)
      : team_(team), number_(number), call_(call), half_(number % kHalves), pace_(pace) {}

  __device__ uint64_t number() const { return number_; }
  /// Copies to every rank [N], left by one block of the kernel for its last one.
  __device__ uint32_t* rows() const { return team_.state->rows[half_]; }
  /// By thread p, which has looked: until peer p has given the half back. False where it waited in vain:
  /// nothing may be stored.
  __device__ bool has_room(const SignalsSeen& acks) const {
    const int peer = static_cast<int>(threadIdx.x);
    if (peer >= team_.layout.num_ranks) return true;
    if (number_ > kHalves &&
        !wait(team_.layout.ack_line(half_, peer),
              {Wait::kSlotFree, number_ - kHalves, peer, 0, kOfWindow}, acks.of(half_)))
      return false;
    return !acks.has_failed;
  }
  /// All threads. False: nothing may be stored.
  __device__ bool await_room() const {
    return __syncthreads_and(has_room(look_at_acks(team_))) != 0;
  }
  /// Where this rank's copies go at `peer`; the whole half there; what `source` pushed here.
  __device__ std::byte* region_at(int peer) const {
    return half_at(peer) + static_cast<uint64_t>(team_.rank) * team_.region_bytes;
  }
  __device__ std::byte* half_at(int peer) const {
    return team_.windows[peer] + team_.layout.half(half_);
  }
  __device__ const std::byte* region_of(int source) const {
    return half() + static_cast<uint64_t>(source) * team_.region_bytes;
  }
  __device__ const std::byte* half() const { return own() + team_.layout.half(half_); }
  /// How many rows each expert [L] of `rank` gets of `source`, in the rank's window.
  __device__ int32_t* row_counts_at(int rank, int source, int num_local) const {
    return reinterpret_cast<int32_t*>(team_.windows[rank] +
                                      row_counts(team_.layout, half_, source, num_local));
  }

  /// By thread p of one block: what peer p's flag says. Behind room: the peer may still read the
  /// words of two phases ago.
  __device__ void say(const CallShape& shape, uint32_t rows, uint32_t total_rows,
                      int num_tokens) const {
    const int peer = static_cast<int>(threadIdx.x);
    const FlagWords words{shape, rows, total_rows, static_cast<uint32_t>(num_tokens),
                          static_cast<uint32_t>(call_)};
    std::byte* const line = team_.windows[peer] + team_.layout.flag_line(half_, team_.rank);
    static_assert(sizeof(FlagWords) % 4 == 0);
    const auto* const from = reinterpret_cast<const uint32_t*>(&words);
    auto* const to = reinterpret_cast<uint32_t*>(line);
#pragma unroll
    for (uint32_t i = 0; i < sizeof(FlagWords) / 4; ++i) to[i] = from[i];
  }
  /// By the last block, of what another one has left in State.
  __device__ void say_kept(const CallShape& shape, const uint32_t* totals, int num_tokens) const {
    const int peer = static_cast<int>(threadIdx.x);
    if (peer >= team_.layout.num_ranks) return;
    const bool failed = device::has_failed(team_.watch);  // then room may not have come
    const uint32_t of_phase = seen(rows() + peer), of_call = seen(totals + peer);
    if (!failed) say(shape, of_phase, of_call, num_tokens);
  }
  /// All threads of the last block: a flag to everybody, unless something failed.
  __device__ void tell() const { signal(team_.layout.flag_line(half_, team_.rank)); }

  /// All threads: until the flags of all sources are here, and say the same call as ours. False: in
  /// vain, or one that does not, and the fault page says which. `flags`: as looked at.
  __device__ bool await_flags(const CallShape& shape, Arrived* arrived, uint32_t most_rows,
                              const SignalsSeen& flags, int64_t* wait_ns = nullptr) const {
    const int source = static_cast<int>(threadIdx.x);
    bool ok = true;
    if (source < team_.layout.num_ranks) {
      const int64_t begin_ns = wait_ns != nullptr ? device::clock_ns() : 0;
      ok = wait(team_.layout.flag_line(half_, source),
                {Wait::kSlotFull, number_, source, 0, kOfWindow}, flags.of(half_));
      if (ok && wait_ns != nullptr && blockIdx.x == 0)
        wait_ns[source] += device::clock_ns() - begin_ns;
      ok = ok && !flags.has_failed && take(source, shape, arrived, most_rows);
    }
    return __syncthreads_and(ok) != 0;
  }
  __device__ bool await_flags(const CallShape& shape, Arrived* arrived, uint32_t most_rows) const {
    return await_flags(shape, arrived, most_rows, look_at_flags(team_));
  }

  /// All threads of the last block: everybody may write the half again.
  __device__ void release() const { signal(team_.layout.ack_line(half_, team_.rank)); }

 private:
  __device__ void signal(uint64_t line) const {
    const int peer = static_cast<int>(threadIdx.x);
    if (peer >= team_.layout.num_ranks) return;
    const bool failed = device::has_failed(team_.watch);
    device::before_flags();
    if (!failed) device::store_relaxed(number_at(team_.windows[peer], line), number_);
  }
  __device__ std::byte* own() const { return team_.windows[team_.rank]; }
  __device__ __forceinline__ bool wait(uint64_t line, const device::Expected& expected,
                                       uint64_t looked) const {
    const uint64_t* const number = number_at(own(), line);
    return pace_ == Pace::kBrisk ? device::wait_for(team_.watch, number, expected, looked)
                                 : device::wait_gently(team_.watch, number, expected, looked);
  }

  __device__ bool take(int source, const CallShape& shape, Arrived* arrived,
                       uint32_t most_rows) const {
    const std::byte* const line = own() + team_.layout.flag_line(half_, source);
    const auto* const line_words = reinterpret_cast<const uint32_t*>(line);
    const auto* const meant = reinterpret_cast<const uint32_t*>(&shape);
    constexpr int kShapeWords = sizeof(CallShape) / 4, kWords = sizeof(FlagWords) / 4;
    uint32_t said[kWords];  // all are asked for before the first is looked at
#pragma unroll
    for (int i = 0; i < kWords; ++i) said[i] = seen(line_words + i);
#pragma unroll
    for (int i = 0; i < kShapeWords; ++i)
      if (said[i] != meant[i]) return differs(source, i, meant[i], said[i]);
    const uint32_t rows = said[kShapeWords];
    const uint32_t call = said[kShapeWords + 3];
    if (call != static_cast<uint32_t>(call_))
      return differs(source, kShapeWords + 3, static_cast<uint32_t>(call_), call);
    if (rows > most_rows) return differs(source, kShapeWords, most_rows, rows);
    arrived->rows[source] = rows;
    arrived->total_rows[source] = said[kShapeWords + 1];
    arrived->num_tokens[source] = said[kShapeWords + 2];
    return true;
  }
  __device__ bool differs(int source, int word, uint32_t meant, uint32_t said) const {
    device::give_up(team_.watch, {Wait::kAgreement, meant, source, 0, 1 + word}, said, false);
    return false;
  }

  const Team& team_;
  const uint64_t number_, call_, half_;
  const Pace pace_;
};

/// The next phase of a team, taken by a kernel that sends.
__device__ __forceinline__ Phase next_phase(const Team& team, const StartFacts& known) {
  return Phase(team, known.phase + 1, known.call + 1);
}
/// That of a ticket.
__device__ __forceinline__ Phase phase_of(const Team& team, const Ticket& ticket) {
  return Phase(team, ticket.phase, ticket.call);
}
/// By one thread of the last block of the last step of a kernel that took numbers.
__device__ __forceinline__ void keep_numbers(const Team& team, uint64_t phase, uint64_t call) {
  team.state->phase = phase;
  team.state->call = call;
}

/// An argument that only the GPU can see is none that may be: ends the call, and says so.
__device__ __forceinline__ void refuse(const device::Watch& watch, int32_t what, uint64_t expected,
                                       uint64_t got, int32_t token) {
  device::give_up(watch, {Wait::kArgument, expected, watch.rank, token, what}, got, false);
}

}  // namespace braid::moe::gpu
