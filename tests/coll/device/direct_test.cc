// What the host makes of direct kernels: one, several in a row, or none, each with its part of
// every block, in place and not. On fake GPUs whose kernels do what the real ones do.
#include "coll/device/direct.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "coll/device/fake_sums.h"
#include "support/fake_direct.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

std::byte direct_byte_of(int rank, uint64_t at) {
  return static_cast<std::byte>((at * 7 + at / 251 + static_cast<uint64_t>(rank) * 101) & 0xff);
}

/// Ranks whose comms have areas for direct kernels.
class DirectRanks {
 public:
  explicit DirectRanks(int size, std::string_view limit = "64KiB")
      : size_(size), limit_(limit), cuda_(size) {
    test::define_team_kernels(cuda_);
    test::define_sums(cuda_);  // a root copies its own beside the kernels
    test::define_direct(cuda_, [this](const DirectArgs& args) {
      if (args.team.rank == 0) ++num_launches_;
    });
  }

  void run(const std::function<void(comm::Comm&, std::barrier<>&)>& body) {
    const Options options = {{"BRAID_GPU_DIRECT", limit_}};
    test::run_gpu_comms(size_, {}, [&](comm::Comm& comm, std::barrier<>& all) {
      comm.state().config = test::make_config(test::gpu_options(options));
      const comm::ArenaRequest arena{
          0, {{kPacketArea, 256, 256}, direct_area(comm.state().config, size_)}};
      auto made = comm::Device::create(comm.state(), cuda_, {comm.rank(), arena});
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      comm.state().device = std::move(made).value();
      body(comm, all);
    });
    EXPECT_EQ(cuda_.alive(), sys::FakeCudaCounts{});
  }

  int size() const { return size_; }
  sys::FakeCuda& cuda() { return cuda_; }
  /// Of rank 0, since the last time.
  int take_launches() { return num_launches_.exchange(0); }

 private:
  const int size_;
  const std::string limit_;
  sys::FakeCuda cuda_;
  std::atomic<int> num_launches_{0};
};

struct DirectCase {
  int size;
  uint64_t block_bytes;
  int num_kernels;
};
void PrintTo(const DirectCase& c, std::ostream* os) {
  *os << c.size << " ranks, blocks of " << c.block_bytes << " bytes, " << c.num_kernels
      << " kernels";
}

class DirectKernels : public testing::TestWithParam<DirectCase> {};

TEST_P(DirectKernels, EveryByteOfAnAllGatherIsRight) {
  const DirectCase c = GetParam();
  DirectRanks ranks(c.size);
  ranks.run([&](comm::Comm& comm, std::barrier<>& all) {
    const int me = comm.rank();
    const auto n = static_cast<uint64_t>(c.size);
    test::GuardedMemory send(ranks.cuda(), c.block_bytes), recv(ranks.cuda(), n * c.block_bytes);
    for (const bool in_place : {false, true, false}) {
      const uint64_t place = static_cast<uint64_t>(me) * c.block_bytes;
      std::byte* from = in_place ? recv.data() + place : send.data();
      std::memset(recv.data(), 0xee, recv.bytes());
      for (uint64_t i = 0; i < c.block_bytes; ++i) from[i] = direct_byte_of(me, i);
      all.arrive_and_wait();
      const Status status = on_device(comm, me, [&](comm::Device& device) {
        return all_gather(device, reinterpret_cast<sys::DevicePtr>(from), recv.get(), c.block_bytes,
                          Dtype::kUint8, {});
      });
      EXPECT_TRUE(status.ok()) << status.to_string();
      all.arrive_and_wait();
      for (uint64_t i = 0; i < recv.bytes(); ++i)
        ASSERT_EQ(recv.data()[i],
                  direct_byte_of(static_cast<int>(i / c.block_bytes), i % c.block_bytes))
            << "byte " << i;
      EXPECT_TRUE(send.is_guarded() && recv.is_guarded());
      if (me == 0) {
        EXPECT_EQ(ranks.take_launches(), c.num_kernels);
      }
      all.arrive_and_wait();
    }
  });
}

TEST_P(DirectKernels, EveryByteOfAnAllToAllIsRight) {
  const DirectCase c = GetParam();
  DirectRanks ranks(c.size);
  ranks.run([&](comm::Comm& comm, std::barrier<>& all) {
    const int me = comm.rank();
    const auto n = static_cast<uint64_t>(c.size);
    test::GuardedMemory send(ranks.cuda(), n * c.block_bytes),
        recv(ranks.cuda(), n * c.block_bytes);
    // In place on one rank alone, too: where results go is a rank's own matter.
    for (const int in_place : {0, 1, 2}) {
      const bool is_in_place = in_place == 1 || (in_place == 2 && me == 0);
      std::byte* from = is_in_place ? recv.data() : send.data();
      std::memset(recv.data(), 0xee, recv.bytes());
      for (uint64_t i = 0; i < send.bytes(); ++i) from[i] = direct_byte_of(me, i);
      all.arrive_and_wait();
      const Status status = on_device(comm, me, [&](comm::Device& device) {
        return all_to_all(device, reinterpret_cast<sys::DevicePtr>(from), recv.get(), c.block_bytes,
                          Dtype::kUint8, {});
      });
      EXPECT_TRUE(status.ok()) << status.to_string();
      all.arrive_and_wait();
      for (uint64_t i = 0; i < recv.bytes(); ++i) {
        const uint64_t there = static_cast<uint64_t>(me) * c.block_bytes + i % c.block_bytes;
        ASSERT_EQ(recv.data()[i], direct_byte_of(static_cast<int>(i / c.block_bytes), there))
            << "byte " << i;
      }
      EXPECT_TRUE(send.is_guarded() && recv.is_guarded());
      if (me == 0) {
        EXPECT_EQ(ranks.take_launches(), c.num_kernels);
      }
      all.arrive_and_wait();
    }
  });
}

// The areas of 64 KiB have room for blocks of 85 KiB among four, 128 among two.
INSTANTIATE_TEST_SUITE_P(Blocks, DirectKernels,
                         testing::Values(DirectCase{2, 1000, 1}, DirectCase{2, 32'768, 1},
                                         DirectCase{2, 100'003, 1}, DirectCase{3, 60'000, 1},
                                         DirectCase{4, 16'384, 1}, DirectCase{4, 70'001, 1},
                                         DirectCase{4, 100'000, 2}, DirectCase{4, 150'003, 2},
                                         DirectCase{8, 50'001, 2}));

TEST(DirectKernelsInARow, AnAllReduceIsTheSumOfItsPieces) {
  for (const int size : {3, 4}) {
    DirectRanks ranks(size);
    ranks.run([&](comm::Comm& comm, std::barrier<>& all) {
      const int me = comm.rank();
      for (const uint64_t count : {10'000, 60'000, 61'001}) {
        test::GuardedMemory buffer(ranks.cuda(), count * 4);
        auto* values = reinterpret_cast<int32_t*>(buffer.data());
        const auto value = [](int rank, uint64_t i) {
          return static_cast<int32_t>(i * 3 + static_cast<uint64_t>(rank) * 1000);
        };
        for (uint64_t i = 0; i < count; ++i) values[i] = value(me, i);
        all.arrive_and_wait();
        const Status status = on_device(comm, me, [&](comm::Device& device) {
          return all_reduce(device, buffer.get(), buffer.get(), count, Dtype::kInt32, RedOp::kSum,
                            {});
        });
        EXPECT_TRUE(status.ok()) << status.to_string();
        all.arrive_and_wait();
        for (uint64_t i = 0; i < count; ++i) {
          int32_t sum = 0;
          for (int r = 0; r < size; ++r) sum += value(r, i);
          ASSERT_EQ(values[i], sum) << "element " << i << " of " << count;
        }
        EXPECT_TRUE(buffer.is_guarded());
        if (me == 0) {
          EXPECT_EQ(ranks.take_launches(), count == 10'000 ? 1 : 2) << size << " ranks";
        }
        all.arrive_and_wait();
      }
    });
  }
}

// A broadcast goes by any number of them, of 16 MiB at least.
TEST(DirectKernelsInARow, ABroadcastOfAnyLengthIsTheRoots) {
  for (const int size : {3, 4}) {
    DirectRanks ranks(size, "8MiB");
    ranks.run([&](comm::Comm& comm, std::barrier<>& all) {
      const int me = comm.rank(), root = size - 1;
      const auto word = [](int rank, uint64_t i) {
        return i * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(rank);
      };
      for (const uint64_t words : {1'000'000, 5'000'001}) {
        test::GuardedMemory send(ranks.cuda(), words * 8), recv(ranks.cuda(), words * 8);
        auto* const from = reinterpret_cast<uint64_t*>(send.data());
        for (uint64_t i = 0; i < words; ++i) from[i] = word(me, i);
        all.arrive_and_wait();
        const Status status = on_device(comm, me, [&](comm::Device& device) {
          return broadcast(device, send.get(), recv.get(), words, Dtype::kInt64, root, {});
        });
        EXPECT_TRUE(status.ok()) << status.to_string();
        all.arrive_and_wait();
        const auto* const to = reinterpret_cast<const uint64_t*>(recv.data());
        for (uint64_t i = 0; i < words; ++i)
          ASSERT_TRUE(to[i] == word(root, i)) << "word " << i << " of " << words;
        EXPECT_TRUE(send.is_guarded() && recv.is_guarded());
        if (me == 0) {
          EXPECT_EQ(ranks.take_launches(), words == 1'000'000 ? 1 : 3) << size << " ranks";
        }
        all.arrive_and_wait();
      }
    });
  }
}

// One rank has registered its results: it would wait in other kernels than the others.
TEST(DirectKernelsInARow, RanksThatGoOtherWaysAreAnError) {
  DirectRanks ranks(2);
  ranks.run([&](comm::Comm& comm, std::barrier<>& all) {
    constexpr uint64_t kOddBlock = 100'000;
    const int me = comm.rank();
    test::GuardedMemory send(ranks.cuda(), kOddBlock), recv(ranks.cuda(), 2 * kOddBlock),
        other(ranks.cuda(), 2 * kOddBlock);
    EXPECT_TRUE(comm.state().device->registrations().add(recv.get(), 2 * kOddBlock).ok());
    all.arrive_and_wait();
    const sys::DevicePtr to = me == 0 ? recv.get() : other.get();
    (void)on_device(comm, me, [&](comm::Device& device) {
      return all_gather(device, send.get(), to, kOddBlock, Dtype::kUint8, {});
    });
    Status status;
    const Deadline deadline = Deadline::after_ns(10_s);
    while (status.ok() && !deadline.passed()) {
      status = comm.state().device->faults().status();
      std::this_thread::yield();
    }
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    all.arrive_and_wait();
  });
}

}  // namespace
}  // namespace braid::coll::device
