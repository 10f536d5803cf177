// Ranks with a GPU each and no GPU anywhere: threads that share one FakeCuda, rank r on device r,
// with a Comm and its Device.
//
//   sys::FakeCuda cuda(4);
//   test::define_team_kernels(cuda);
//   test::run_gpus(4, cuda, {}, [](test::GpuRank& rank) { rank.device.barriers().all(...); });
//   EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coll/ranks.h"
#include "coll/relay/relay.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "comm/state.h"
#include "support/fake_kernels.h"
#include "sys/cuda/owned.h"
#include "transport/nvlink/lent_memory.h"

namespace braid::test {

inline Options gpu_options(const Options& options) {
  Options all = {{"BRAID_LINKS", "shm"},     {"BRAID_LOG", "off"},
                 {"BRAID_TIMEOUT", "20s"},   {"BRAID_GPU_SCRATCH", "16MiB"},
                 {"BRAID_GPU_PACKETS", "0"}, {"BRAID_GPU_LINES", "0"},
                 {"BRAID_GPU_RDMA", "off"}};  // whatever NIC this machine has
  for (const auto& [name, value] : options) all[name] = value;
  return all;
}

/// Device memory with guards in front and behind. Ends before the thread's context and Cuda.
class GuardedMemory {
 public:
  static constexpr uint64_t kGuardBytes = 512;
  static constexpr auto kGuard = std::byte{0xa5};

  /// `bytes` that begin `offset_bytes` behind a 256-byte boundary.
  GuardedMemory(sys::Cuda& cuda, uint64_t bytes, uint64_t offset_bytes = 0)
      : memory_(sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes + room(offset_bytes))).value()),
        begin_(memory_.get() + kGuardBytes + offset_bytes),
        end_(begin_ + bytes) {
    std::fill_n(pointer_to(memory_.get()), bytes + room(offset_bytes), kGuard);
  }

  sys::DevicePtr get() const { return begin_; }
  std::byte* data() const { return pointer_to(begin_); }
  uint64_t bytes() const { return end_ - begin_; }
  bool is_guarded() const {
    const auto untouched = [](std::byte b) { return b == kGuard; };
    return std::all_of(pointer_to(memory_.get()), pointer_to(begin_), untouched) &&
           std::all_of(pointer_to(end_), pointer_to(end_) + kGuardBytes, untouched);
  }

 private:
  static uint64_t room(uint64_t offset_bytes) { return 2 * kGuardBytes + offset_bytes; }
  static std::byte* pointer_to(sys::DevicePtr address) {
    return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  sys::DeviceMemory memory_;
  sys::DevicePtr begin_, end_;
};

/// What BRAID_GPU_PACKETS=0 and BRAID_GPU_LINES=0 give: no call goes by packets, lines or directly.
inline comm::ArenaRequest small_arena(int size) {
  comm::ArenaRequest request{0, {{"packets", 256, 256}}};
  if (size > 2) request.areas.push_back({"relay", coll::kRelayFlagBytes, coll::kRelayFlagBytes});
  return request;
}

inline comm::DeviceLink& nic_of(const comm::Device& device) { return *device.links().find("rdma"); }
/// Nothing: shares are not balanced.
inline std::optional<comm::ShareBalance::Summary> balance_summary(const comm::Device& device) {
  const comm::ShareBalance* const balance = device.links().main().balance();
  if (balance == nullptr) return std::nullopt;
  return balance->summary();
}

struct GpuRank {
  comm::Comm& comm;
  comm::Device& device;
  sys::FakeCuda& cuda;
  std::barrier<>& all;  // of the test's own: works in every state of the comm
  int rank() const { return device.rank(); }
  int size() const { return device.size(); }
};

/// Calls `body(comm)` for every rank, without a Device; waits for all before any of them closes:
/// a rank that had trouble does not wait for the others, whose work may still be in its memory.
inline void run_gpu_comms(int size, const Options& options,
                          const std::function<void(comm::Comm&, std::barrier<>&)>& body) {
  auto hub = std::make_shared<ThreadHub>(size);
  const Config config = make_config(gpu_options(options));
  std::barrier<> all(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto comm = comm::Comm::create(std::make_unique<ThreadGroup>(hub, rank), config);
      EXPECT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status().to_string();
      if (comm.ok()) body(*comm.value(), all);
      all.arrive_and_wait();
      if (!comm.ok()) return;
      EXPECT_TRUE(comm.value()->close().ok());
    });
  for (std::thread& thread : threads) thread.join();
  nvlink::await_frees();  // as long as the Cuda is there
}

/// The same with a Device in each comm's state, where coll::device::on_device() finds it. `options`
/// are the Device's: a short BRAID_TIMEOUT is not one for making the Comm. `nics`:
/// Device::create().
inline void run_gpus(int size, sys::FakeCuda& cuda, const Options& options,
                     const std::function<void(GpuRank&)>& body,
                     sys::FabricLibrary* nics = nullptr) {
  run_gpu_comms(size, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    comm.state().config = make_config(gpu_options(options));
    auto made = comm::Device::create(comm.state(), cuda, {comm.rank(), small_arena(size), nics});
    EXPECT_TRUE(made.ok()) << "rank " << comm.rank() << ": " << made.status().to_string();
    if (!made.ok()) return;
    comm.state().device = std::move(made).value();
    GpuRank rank{comm, *comm.state().device, cuda, all};
    body(rank);
  });
}

}  // namespace braid::test
