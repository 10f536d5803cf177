// Ranks for packets_check and collectives_check: each a stream with buffers, an area and a state, on a
// GPU of its own where there are enough, else several on one. One host thread launches for all of
// them, call by call.
#pragma once

#include <algorithm>

#include "coll/direct/direct.h"
#include "coll/packets/packets.h"
#include "device/gpu.h"

namespace braid::test {

inline constexpr uint64_t kGuardBytes = 64;  // behind every receive buffer, and never written

static __global__ void count_differences(const uint8_t* got, const uint8_t* want, uint64_t bytes,
                                         unsigned* differences) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += stride)
    if (got[i] != want[i]) atomicAdd(differences, 1U);
}

struct Rank {
  int device;
  cudaStream_t stream;
  uint8_t* send;
  uint8_t* recv;
  uint8_t* want;
  unsigned* differences;
  device::Fault* fault;
  uint32_t* must_abort;
  std::byte* area;
  coll::PacketState* state;
  coll::DirectState* direct_state;
};

class Ranks {
 public:
  /// Buffers hold every block of block_bytes, at an offset, and guards. An area of `area_bytes`, a
  /// multiple of 256, or of what packets need for all those blocks.
  Ranks(int num_ranks, uint64_t block_bytes, uint64_t area_bytes = 0)
      : ranks_(static_cast<size_t>(num_ranks)) {
    const uint64_t blocks = static_cast<uint64_t>(num_ranks);
    buffer_bytes_ = blocks * block_bytes + 64 + kGuardBytes;
    capacity_bytes_ = area_bytes;
    if (area_bytes == 0) capacity_bytes_ = 2 * 16 * (blocks * (block_bytes / 8 + 1) + 2 * blocks);
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    for (int r = 0; r < num_ranks; ++r) open(ranks_[static_cast<size_t>(r)], r % devices);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    for (Rank& rank : ranks_) {
      CHECK_CUDA(cudaSetDevice(rank.device));
      CHECK_CUDA(cudaStreamDestroy(rank.stream));
      for (void* p : {static_cast<void*>(rank.send), static_cast<void*>(rank.recv),
                      static_cast<void*>(rank.want), static_cast<void*>(rank.differences),
                      static_cast<void*>(rank.area), static_cast<void*>(rank.state),
                      static_cast<void*>(rank.direct_state)})
        CHECK_CUDA(cudaFree(p));
      CHECK_CUDA(cudaFreeHost(rank.fault));
      CHECK_CUDA(cudaFreeHost(rank.must_abort));
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& operator[](int r) { return ranks_[static_cast<size_t>(r)]; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t timeout_ns = 10'000'000'000;

  nvlink::Team team_of(int r) const {
    const Rank& rank = ranks_[static_cast<size_t>(r)];
    return {r, size(), timeout_ns, rank.fault, rank.must_abort, &rank.state->unused};
  }
  coll::PacketArgs args_of(int r) const {
    coll::PacketArgs args{};
    args.team = team_of(r);
    for (size_t k = 0; k < ranks_.size(); ++k) args.packets.area[k] = ranks_[k].area;
    args.packets.state = ranks_[static_cast<size_t>(r)].state;
    args.packets.capacity_bytes = capacity_bytes_;
    return args;
  }
  coll::DirectArgs direct_args_of(int r) const {
    coll::DirectArgs args{};
    args.team = team_of(r);
    for (size_t k = 0; k < ranks_.size(); ++k) args.direct.area[k] = ranks_[k].area;
    args.direct.state = ranks_[static_cast<size_t>(r)].direct_state;
    args.direct.half_bytes = coll::direct_half_bytes(capacity_bytes_);
    return args;
  }

  void wait() {
    for (Rank& rank : ranks_) {
      CHECK_CUDA(cudaSetDevice(rank.device));
      CHECK_CUDA(cudaStreamSynchronize(rank.stream));
    }
  }

  /// As new: after the areas' first use, after a failure.
  void clear() {
    wait();
    for (Rank& rank : ranks_) {
      CHECK_CUDA(cudaSetDevice(rank.device));
      CHECK_CUDA(cudaMemset(rank.area, 0, capacity_bytes_));
      CHECK_CUDA(cudaMemset(rank.state, 0, sizeof(*rank.state)));
      CHECK_CUDA(cudaMemset(rank.direct_state, 0, sizeof(*rank.direct_state)));
      CHECK_CUDA(cudaMemset(rank.differences, 0, sizeof(unsigned)));
      CHECK_CUDA(cudaDeviceSynchronize());
      *rank.fault = {};
      *rank.must_abort = 0;
    }
  }

  /// Bytes that differed since the last question, of all ranks; prints a rank's fault.
  unsigned take_differences() {
    wait();
    unsigned total = 0;
    for (Rank& rank : ranks_) {
      unsigned differences = 0;
      CHECK_CUDA(cudaSetDevice(rank.device));
      CHECK_CUDA(cudaMemcpy(&differences, rank.differences, sizeof(unsigned), cudaMemcpyDefault));
      CHECK_CUDA(cudaMemset(rank.differences, 0, sizeof(unsigned)));
      total += differences;
      if (rank.fault->code == 0) continue;
      std::printf("rank %d gave up on peer %d in block %d: expected %lu, saw %lu\n",
                  rank.fault->rank, rank.fault->peer, rank.fault->block,
                  static_cast<unsigned long>(rank.fault->expected),
                  static_cast<unsigned long>(rank.fault->seen));
      ++total;
    }
    for (Rank& rank : ranks_) {
      CHECK_CUDA(cudaSetDevice(rank.device));
      CHECK_CUDA(cudaDeviceSynchronize());
    }
    return total;
  }

 private:
  void open(Rank& rank, int device) {
    rank.device = device;
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(&rank.send, buffer_bytes_));
    CHECK_CUDA(cudaMalloc(&rank.recv, buffer_bytes_));
    CHECK_CUDA(cudaMalloc(&rank.want, buffer_bytes_));
    CHECK_CUDA(cudaMalloc(&rank.differences, sizeof(unsigned)));
    CHECK_CUDA(cudaMemset(rank.differences, 0, sizeof(unsigned)));
    CHECK_CUDA(cudaMalloc(&rank.area, capacity_bytes_));
    CHECK_CUDA(cudaMemset(rank.area, 0, capacity_bytes_));
    CHECK_CUDA(cudaMalloc(&rank.state, sizeof(*rank.state)));
    CHECK_CUDA(cudaMemset(rank.state, 0, sizeof(*rank.state)));
    CHECK_CUDA(cudaMalloc(&rank.direct_state, sizeof(*rank.direct_state)));
    CHECK_CUDA(cudaMemset(rank.direct_state, 0, sizeof(*rank.direct_state)));
    CHECK_CUDA(cudaHostAlloc(&rank.fault, sizeof(*rank.fault), cudaHostAllocPortable));
    CHECK_CUDA(cudaHostAlloc(&rank.must_abort, sizeof(uint32_t), cudaHostAllocPortable));
    *rank.fault = {};
    *rank.must_abort = 0;
    CHECK_CUDA(cudaDeviceSynchronize());
  }

  std::vector<Rank> ranks_;
  uint64_t buffer_bytes_;
  uint64_t capacity_bytes_;
};

}  // namespace braid::test
