// Ranks for moe_check: each a stream with a window, on a GPU of its own where there are enough, else
// several on one; and memory that both sides look at.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/gpu.h"
#include "moe/gpu/args.h"

namespace braid::test {

using Bytes = std::vector<std::byte>;
inline constexpr std::byte kPoison{0xee};

/// Device memory, of the current device when it was made.
class Memory {
 public:
  explicit Memory(uint64_t bytes = 0) : bytes_(bytes) {
    CHECK_CUDA(cudaMalloc(&at_, bytes + 16));  // never null
    CHECK_CUDA(cudaMemset(at_, static_cast<int>(kPoison), bytes));
  }
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) { put(bytes); }
  template <typename T>
  static Memory of(const std::vector<T>& values) {
    Memory memory(values.size() * sizeof(T));
    CHECK_CUDA(cudaMemcpy(memory.at_, values.data(), memory.bytes_, cudaMemcpyDefault));
    return memory;
  }
  ~Memory() { CHECK_CUDA(cudaFree(at_)); }
  Memory(Memory&& other) noexcept : at_(other.at_), bytes_(other.bytes_) {
    other.at_ = nullptr;
    other.bytes_ = 0;
  }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(at_);
  }
  uint64_t bytes() const { return bytes_; }
  void put(const Bytes& bytes) {
    CHECK_CUDA(cudaMemcpy(at_, bytes.data(), bytes.size(), cudaMemcpyDefault));
  }
  void fill(std::byte value) { CHECK_CUDA(cudaMemset(at_, static_cast<int>(value), bytes_)); }
  Bytes get() const {
    Bytes bytes(bytes_);
    CHECK_CUDA(cudaMemcpy(bytes.data(), at_, bytes_, cudaMemcpyDefault));
    return bytes;
  }

 private:
  void* at_ = nullptr;
  uint64_t bytes_ = 0;
};

struct MoeRank {
  int device = 0;
  cudaStream_t stream = nullptr;
  Memory window, state, failed;
  device::Fault* fault = nullptr;
  uint32_t* must_abort = nullptr;
};

class MoeRanks {
 public:
  MoeRanks(int num_ranks, uint64_t half_bytes, int most_devices = 8)
      : layout_(moe::WindowLayout::with_halves(num_ranks, half_bytes)) {
    CHECK_CUDA(cudaGetDeviceCount(&num_devices_));
    num_devices_ = std::min(num_devices_, most_devices);
    for (int r = 0; r < num_ranks; ++r) open(r % num_devices_);
    clear();
    use(0);
  }
  MoeRanks(const MoeRanks&) = delete;
  MoeRanks& operator=(const MoeRanks&) = delete;
  ~MoeRanks() {
    wait();
    for (MoeRank& rank : ranks_) {
      CHECK_CUDA(cudaStreamDestroy(rank.stream));
      CHECK_CUDA(cudaFreeHost(rank.fault));
      CHECK_CUDA(cudaFreeHost(rank.must_abort));
    }
  }

  int size() const { return layout_.num_ranks; }
  const moe::WindowLayout& layout() const { return layout_; }
  MoeRank& operator[](int r) { return ranks_[static_cast<size_t>(r)]; }
  int64_t timeout_ns = 1'000'000'000;
  /// Of a rank, so that all ranks of a GPU find a place at once.
  int most_blocks() const {
    return std::max(1, sms_ / ((size() + num_devices_ - 1) / num_devices_));
  }
  int sms() const { return sms_; }
  /// Of stages that rows are moved through in bulk; 0 on a GPU that does not.
  uint32_t stage_bytes() const {
    int most_shared_bytes = 0;
    CHECK_CUDA(cudaDeviceGetAttribute(&most_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      ranks_[0].device));
    return moe::gpu::bulk_stage_bytes(static_cast<uint32_t>(most_shared_bytes));
  }

  moe::gpu::Team team_of(int r) const {
    const MoeRank& rank = ranks_[static_cast<size_t>(r)];
    moe::gpu::Team team{};
    for (size_t k = 0; k < ranks_.size(); ++k) team.windows[k] = ranks_[k].window.as<std::byte>();
    team.layout = layout_;
    team.region_bytes = layout_.region_bytes();
    team.rank = r;
    team.state = rank.state.as<moe::gpu::State>();
    team.watch = {r, timeout_ns, rank.fault, rank.must_abort, rank.failed.as<uint32_t>()};
    return team;
  }
  void use(int r) const { CHECK_CUDA(cudaSetDevice(ranks_[static_cast<size_t>(r)].device)); }
  void wait() const {
    for (int r = 0; r < size(); ++r) {
      use(r);
      CHECK_CUDA(cudaStreamSynchronize(ranks_[static_cast<size_t>(r)].stream));
    }
  }
  /// As new: at first, and after a failure.
  void clear() {
    wait();
    for (int r = 0; r < size(); ++r) {
      use(r);
      MoeRank& rank = ranks_[static_cast<size_t>(r)];
      for (Memory* memory : {&rank.window, &rank.state, &rank.failed}) memory->fill(std::byte{0});
      CHECK_CUDA(cudaDeviceSynchronize());
      *rank.fault = {};
      *rank.must_abort = 0;
    }
  }
  /// Whether a wait ended in vain; said in words.
  bool has_fault() const {
    bool any = false;
    for (const MoeRank& rank : ranks_) {
      const device::Fault& fault = *rank.fault;
      if (fault.code == 0) continue;
      any = true;
      std::printf(
          "     rank %d gave up: wait %u for peer %d in block %d (tile %d, flag %d): expected "
          "%llu, "
          "saw %llu\n",
          fault.rank, static_cast<unsigned>(fault.wait), fault.peer, fault.block, fault.tile,
          fault.flag, static_cast<unsigned long long>(fault.expected),
          static_cast<unsigned long long>(fault.seen));
    }
    return any;
  }

 private:
  void open(int device) {
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device));
    MoeRank rank;
    rank.device = device;
    CHECK_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    rank.window = Memory(moe::gpu::window_bytes(layout_));
    rank.state = Memory(sizeof(moe::gpu::State));
    rank.failed = Memory(sizeof(uint32_t));
    CHECK_CUDA(cudaHostAlloc(&rank.fault, sizeof(device::Fault), cudaHostAllocPortable));
    CHECK_CUDA(cudaHostAlloc(&rank.must_abort, sizeof(uint32_t), cudaHostAllocPortable));
    *rank.fault = {};
    *rank.must_abort = 0;
    ranks_.push_back(std::move(rank));
  }

  const moe::WindowLayout layout_;
  int num_devices_ = 1, sms_ = 1;
  std::vector<MoeRank> ranks_;
};

}  // namespace braid::test
