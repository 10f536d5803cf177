// A phase as the blocks of a kernel go through it: room, flags, acks, as phases.h tells, by all
// threads of every block.
//
// Step     a part of a kernel whose end somebody hears of: copies pushed, slots read. Every block
//          arrives at the end of every step, also when a wait ended in vain; whichever is last tells
//          the peers, for all. So there is nothing to reset and blocks need not wait for each other.
//          Blocks may be a step ahead of others: one that has sent round j + 1 and taken j sends no
//          j + 2 before all have taken j, but where there is none it may be through with taking
//          j + 1. So steps of sending and of taking, of even rounds and of odd ones, are counted
//          apart: of one count's steps none begins before all have done the one before.
// Order    what a block stored is before its arrival: all its threads meet, one makes a fence of the
//          system and adds to the counter. The last block has seen all arrivals, makes a fence, meets,
//          and each of its threads releases one peer's flag.
// Failed   a wait that ended in vain marks the GPU, before its block arrives. The last block looks
//          for that mark and then tells nobody, so nothing that is not whole is taken for a phase.
#pragma once

#include "device/wait.cuh"
#include "moe/gpu/args.h"

namespace braid::moe::gpu {

using device::Wait;
// What a note's flag says besides: of a slot, that it is a window's; of words and arguments, which
// one, from 1. comm/device/trouble.cc has their names.
inline constexpr int32_t kOfWindow = 1;

/// Of a loop's turns, those of this block: as equal as can be, in order.
struct Share {
  int32_t begin, end;
  static __device__ __forceinline__ Share of(int64_t total) {
    return {static_cast<int32_t>(total * blockIdx.x / gridDim.x),
            static_cast<int32_t>(total * (blockIdx.x + 1) / gridDim.x)};
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

class Steps {
 public:
  /// `counts` [kHalves]. Steps of a kernel are numbered from 0.
  __device__ Steps(const Team& team, StepCount* counts)
      : team_(team),
        counts_(counts),
        even_(seen(&counts[0].settled)),
        odd_(seen(&counts[1].settled)) {}

  /// All threads. True in the last block to come here, which sees what all others have done.
  __device__ bool arrive(int step) const {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      const uint64_t before =
          atomicAdd(reinterpret_cast<unsigned long long*>(&counts_[step % kHalves].arrived), 1ULL);
      is_last = before + 1 == target(step);
      __threadfence();
    }
    __syncthreads();
    return is_last;
  }
  /// All threads, behind arrive(): until every block has come as far. False: in vain.
  __device__ bool await_all(int step) const {
    bool ok = true;
    if (threadIdx.x == 0)
      ok = device::wait_for(team_.watch, &counts_[step % kHalves].arrived,
                            {Wait::kBarrier, target(step), team_.rank, 0, 0});
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
           (static_cast<uint64_t>(step) / kHalves + 1) * gridDim.x;
  }
  const Team& team_;
  StepCount* const counts_;
  const uint64_t even_, odd_;
};

/// What the flags of a phase say, for all threads of a block.
struct Arrived {
  uint32_t rows[kMostRanks];
  uint32_t total_rows[kMostRanks];
  uint32_t num_tokens[kMostRanks];
};

class Phase {
 public:
  __device__ Phase(const Team& team, uint64_t number, uint64_t call)
      : team_(team), number_(number), call_(call), half_(number % kHalves) {}

  __device__ uint64_t number() const { return number_; }
  /// Copies to every rank [N], left by one block of the kernel for its last one.
  __device__ uint32_t* rows() const { return team_.state->rows[half_]; }
  /// All threads: until all peers have given the half back. False: in vain, nothing may be stored.
  __device__ bool await_room() const {
    bool ok = true;
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < team_.layout.num_ranks) {
      if (number_ > kHalves)
        ok = device::wait_for(team_.watch, number_at(own(), team_.layout.ack_line(half_, peer)),
                              {Wait::kSlotFree, number_ - kHalves, peer, 0, kOfWindow});
      ok = ok && !device::has_failed(team_.watch);
    }
    return __syncthreads_and(ok) != 0;
  }
  /// Where this rank's copies go at `peer`; the whole half there; what `source` pushed here.
  __device__ std::byte* region_at(int peer) const {
    return team_.windows[peer] + team_.layout.region(half_, team_.rank);
  }
  __device__ std::byte* half_at(int peer) const {
    return team_.windows[peer] + team_.layout.half(half_);
  }
  __device__ const std::byte* region_of(int source) const {
    return own() + team_.layout.region(half_, source);
  }
  __device__ const std::byte* half() const { return own() + team_.layout.half(half_); }

  /// All threads of the last block: a flag to everybody, unless something failed.
  __device__ void tell(const CallShape& shape, const uint32_t* totals, int num_tokens) const {
    const int peer = static_cast<int>(threadIdx.x);
    if (peer >= team_.layout.num_ranks) return;
    const bool failed = device::has_failed(team_.watch);
    FlagWords words{shape, seen(rows() + peer), seen(totals + peer),
                    static_cast<uint32_t>(num_tokens), static_cast<uint32_t>(call_)};
    if (failed) return;
    std::byte* const line = team_.windows[peer] + team_.layout.flag_line(half_, team_.rank);
    static_assert(sizeof(FlagWords) % 4 == 0);
    const auto* const from = reinterpret_cast<const uint32_t*>(&words);
    auto* const to = reinterpret_cast<uint32_t*>(line);
#pragma unroll
    for (uint32_t i = 0; i < sizeof(FlagWords) / 4; ++i) to[i] = from[i];
    device::store_release(number_at(team_.windows[peer], team_.layout.flag_line(half_, team_.rank)),
                          number_);
  }

  /// All threads: until the flags of all sources are here, and say the same call as ours. False: in
  /// vain, or one that does not, and the fault page says which.
  __device__ bool await_flags(const CallShape& shape, Arrived* arrived, uint32_t most_rows,
                              int64_t* wait_ns = nullptr) const {
    const int source = static_cast<int>(threadIdx.x);
    bool ok = true;
    if (source < team_.layout.num_ranks) {
      // What this GPU met before; asked for along with the flag.
      const bool failed = device::has_failed(team_.watch);
      const int64_t begin_ns = wait_ns != nullptr ? device::clock_ns() : 0;
      ok = device::wait_for(team_.watch, number_at(own(), team_.layout.flag_line(half_, source)),
                            {Wait::kSlotFull, number_, source, 0, kOfWindow});
      if (ok && wait_ns != nullptr && blockIdx.x == 0)
        wait_ns[source] += device::clock_ns() - begin_ns;
      ok = ok && !failed && take(source, shape, arrived, most_rows);
    }
    return __syncthreads_and(ok) != 0;
  }

  /// All threads of the last block: everybody may write the half again.
  __device__ void release() const {
    const int peer = static_cast<int>(threadIdx.x);
    if (peer >= team_.layout.num_ranks || device::has_failed(team_.watch)) return;
    device::store_release(number_at(team_.windows[peer], team_.layout.ack_line(half_, team_.rank)),
                          number_);
  }

 private:
  __device__ std::byte* own() const { return team_.windows[team_.rank]; }

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
};

/// The next phase of a team, taken by a kernel that sends; every thread gets the same.
__device__ __forceinline__ Phase next_phase(const Team& team) {
  return Phase(team, seen(&team.state->phase) + 1, seen(&team.state->call) + 1);
}
/// A call whose ticket says which phase it is.
__device__ __forceinline__ Phase phase_of(const Team& team, const Ticket* ticket) {
  return Phase(team, seen(&ticket->phase), seen(&ticket->call));
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
