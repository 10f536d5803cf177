// Which messages go by packets and which by lines, by how many ranks they are among: what each
// limit counts. On fake GPUs, which launch nothing here.
#include <gtest/gtest.h>

#include "base/units.h"
#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "coll/device/packets.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

constexpr uint64_t kPackets = 128_KiB, kLines = 1_MiB;

/// `check(device)` on every rank of a comm whose areas have room for both.
void on_ranks(int size, const std::function<void(comm::Device&)>& check,
              const Options& more = {{"BRAID_GPU_DIRECT", "0"}}) {
  sys::FakeCuda cuda(size);
  test::define_team_kernels(cuda);
  Options options = {{"BRAID_GPU_PACKETS", "128KiB"}, {"BRAID_GPU_LINES", "1MiB"}};
  options.insert(more.begin(), more.end());
  test::run_gpu_comms(size, {}, [&](comm::Comm& comm, std::barrier<>&) {
    Config& config = comm.state().config;
    config = test::make_config(test::gpu_options(options));
    const comm::ArenaRequest arena{
        0, {packet_area(config, size), line_area(config, size), direct_area(config, size)}};
    auto made = comm::Device::create(comm.state(), cuda, {comm.rank(), arena});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    comm.state().device = std::move(made).value();
    check(*comm.state().device);
  });
}

/// The largest message of `op`, as message_bytes() counts it, that `fits`.
template <typename Fits>
uint64_t most_bytes(const comm::Device& device, plan::Op op, const Fits& fits) {
  uint64_t most = 0;
  for (uint64_t bytes = 1_KiB; bytes <= 4_MiB; bytes *= 2)
    if (fits(device, op, bytes)) most = message_bytes(device, op, bytes);
  return most;
}

TEST(Paths, LinesAmongTwo) {
  on_ranks(2, [](comm::Device& device) {
    ASSERT_EQ(device.arena().area(kLineArea).limit_bytes, kLines);
    const auto most = [&](plan::Op op) { return most_bytes(device, op, fits_lines); };
    EXPECT_EQ(most(plan::Op::kAllGather), kLines);
    EXPECT_EQ(most(plan::Op::kAllToAll), kLines);
    EXPECT_EQ(most(plan::Op::kReduceScatter), kLines);
    EXPECT_EQ(most(plan::Op::kAllReduce), kLines / 2);
    EXPECT_EQ(most(plan::Op::kBroadcast), kLines / 2);
  });
}

TEST(Paths, LinesEndEarlierAmongMore) {
  for (const int size : {4, 8})
    on_ranks(size, [size](comm::Device& device) {
      const auto most = [&](plan::Op op) { return most_bytes(device, op, fits_lines); };
      EXPECT_EQ(most(plan::Op::kAllGather), size < 8 ? kLines / 2 : kLines);
      EXPECT_EQ(most(plan::Op::kAllReduce), size < 8 ? kLines / 4 : kLines / 8);
      for (const plan::Op op :
           {plan::Op::kAllToAll, plan::Op::kReduceScatter, plan::Op::kBroadcast})
        EXPECT_EQ(most(op), kLines / 4) << static_cast<int>(op);
    });
}

TEST(Paths, DirectKernelsInARowTakeWhatTheAreaOfOneHasNoRoomFor) {
  const auto check = [](comm::Device& device) {
    const auto pieces = [&](plan::Op op, uint64_t bytes) {
      return num_direct_pieces(device, op, bytes);
    };
    EXPECT_TRUE(fits_direct(device, plan::Op::kAllGather, 256_KiB));
    EXPECT_FALSE(fits_direct(device, plan::Op::kAllGather, 1_MiB));
    EXPECT_EQ(pieces(plan::Op::kAllGather, 1_MiB), 1U);
    EXPECT_EQ(pieces(plan::Op::kAllGather, 2_MiB), 2U);
    EXPECT_EQ(pieces(plan::Op::kAllToAll, 2_MiB), 2U);
    EXPECT_EQ(pieces(plan::Op::kAllGather, 4_MiB), 0U);
    EXPECT_EQ(pieces(plan::Op::kReduceScatter, 2_MiB), 0U);
  };
  on_ranks(4, check, {{"BRAID_GPU_DIRECT", "1MiB"}});
  const auto none = [](comm::Device& device) {
    EXPECT_EQ(num_direct_pieces(device, plan::Op::kAllGather, 1_MiB), 0U);
  };
  on_ranks(4, none);
  on_ranks(4, none, {{"BRAID_GPU_DIRECT", "1MiB"}, {"BRAID_LINK_CAP", "nvlink:147"}});
}

TEST(Paths, Packets) {
  for (const int size : {2, 4})
    on_ranks(size, [&](comm::Device& device) {
      const auto most = [&](plan::Op op) { return most_bytes(device, op, fits_packets); };
      EXPECT_EQ(most(plan::Op::kAllGather), kPackets);
      EXPECT_EQ(most(plan::Op::kAllReduce), kPackets / 2);
      EXPECT_EQ(most(plan::Op::kBroadcast), size == 2 ? 2 * kPackets : kPackets);
    });
}

// The names that are asked for are those of the kernels that there are: the check of their machine
// code names them too.
TEST(Paths, LinesAmongManyAreKernelsOfTheirOwn) {
  for (const int size : {4, 5})
    on_ranks(size, [&](comm::Device& device) {
      const CollectiveCall call{plan::Op::kAllGather, 0, 0, 0, Dtype::kInt8, RedOp::kSum};
      const Result<sys::Kernel> kernel = line_kernel(device, call);
      ASSERT_FALSE(kernel.ok());  // a fake has those alone that were defined
      const std::string why = kernel.status().to_string();
      EXPECT_EQ(why.find("_wide") != std::string::npos, size > 4) << why;
    });
}

}  // namespace
}  // namespace braid::coll::device
