// Ranks that are threads of one process with one GPU: kernels whose blocks wait for other ranks'
// must all find a place on it, or none of them ends.
#include <gtest/gtest.h>

#include <atomic>

#include "base/units.h"
#include "coll/device/packets.h"
#include "coll/device/relay.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

constexpr uint32_t kSms = 132;  // of a fake GPU

/// Calls `body` with the Device of each of `size` ranks, all of them on one fake GPU.
void run_on_one_gpu(int size, sys::FakeCuda& cuda, const std::function<void(comm::Device&)>& body) {
  test::define_team_kernels(cuda);
  test::run_gpu_comms(size, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    comm.state().config = test::make_config(test::gpu_options({}));
    const uint64_t limit = comm.state().config.bytes("BRAID_GPU_PACKETS");
    const comm::ArenaRequest arena{0, {{kPacketArea, 8_MiB, 8_MiB, limit}, relay_area(size)}};
    auto made = comm::Device::create(comm.state(), cuda, {0, arena});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_TRUE(made.value()->gpus().are_shared);
    body(*made.value());
    all.arrive_and_wait();
    made.value()->detach(true);
    all.arrive_and_wait();
  });
}

/// The blocks of all ranks' launches of `name`.
class BlocksOfGpu {
 public:
  BlocksOfGpu(sys::FakeCuda& cuda, const char* name) {
    cuda.define_kernel(name, [this](const sys::LaunchShape& shape, std::span<void*>) {
      num_ += shape.num_blocks;
      return Status();
    });
  }
  uint32_t num() const { return num_; }

 private:
  std::atomic<uint32_t> num_ = 0;
};

TEST(SharedGpu, PacketsOfAllRanksFindAPlace) {
  constexpr uint64_t kMany = 128_KiB;  // for every block that there may be
  for (const int size : {2, 8, 16}) {
    sys::FakeCuda cuda(1);
    const BlocksOfGpu blocks(cuda, "braid_packets_all_gather");
    run_on_one_gpu(size, cuda, [&](comm::Device& device) {
      const CollectiveCall call{plan::Op::kAllGather, 0, 0, kMany};
      EXPECT_TRUE(run_packets(device, {}, call).ok());
    });
    EXPECT_GE(blocks.num(), static_cast<uint32_t>(size));
    EXPECT_LE(blocks.num(), 2 * kSms) << size << " ranks";  // two fit a multiprocessor
  }
}

TEST(SharedGpu, RelaysOfAllRanksFindAPlace) {
  for (const int size : {3, 16}) {
    sys::FakeCuda cuda(1);
    const BlocksOfGpu blocks(cuda, "braid_relay");
    run_on_one_gpu(size, cuda, [&](comm::Device& device) {
      RelayCall call;
      call.bytes = 1_GiB;
      call.place = device.arena().scratch();
      EXPECT_TRUE(run_relay(device, {}, call).ok());
    });
    EXPECT_GE(blocks.num(), static_cast<uint32_t>(size));
    EXPECT_LE(blocks.num(), kSms) << size << " ranks";
  }
}

}  // namespace
}  // namespace braid::coll::device
