// Comms that begin with little memory: small messages go as they would with all of it, and the rest
// comes and goes between calls without a wrong byte. On fake GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/device/all_kernels.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/entry.h"
#include "coll/device/fake_sums.h"
#include "coll/device/lines.h"
#include "coll/device/packets.h"
#include "coll/device/relay.h"
#include "coll/device/route.h"
#include "support/fake_direct.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

/// Ranks whose comms have no Device yet.
class RoomRanks {
 public:
  explicit RoomRanks(int size) : size_(size), cuda_(size) {
    test::define_all_kernels(cuda_);
    test::define_team_kernels(cuda_);
    test::define_sums(cuda_);
    test::define_direct(cuda_, [this](const DirectArgs& args) {
      if (args.team.rank == 0) ++num_direct_;
    });
  }
  void run(const test::Options& options,
           const std::function<void(comm::Comm&, std::barrier<>&)>& body) {
    test::Options all = options;
    all["BRAID_TUNE"] = "off";
    test::run_gpu_comms(size_, {}, [&](comm::Comm& comm, std::barrier<>& barrier) {
      comm.state().config = test::make_config(test::gpu_options(all));
      const auto scope = sys::CurrentDevice::use(cuda_, comm.rank());
      ASSERT_TRUE(scope.ok());
      body(comm, barrier);
    });
    EXPECT_EQ(cuda_.alive(), sys::FakeCudaCounts{});
  }
  sys::FakeCuda& cuda() { return cuda_; }
  int take_direct() { return num_direct_.exchange(0); }

 private:
  const int size_;
  sys::FakeCuda cuda_;
  std::atomic<int> num_direct_{0};
};

std::byte room_byte_of(int rank, uint64_t at) {
  return static_cast<std::byte>((at * 13 + at / 257 + static_cast<uint64_t>(rank) * 59) & 0xff);
}

/// Whether every byte of an all_gather is right.
void check_all_gather(RoomRanks& ranks, comm::Comm& comm, uint64_t block) {
  const int me = comm.rank();
  test::GuardedMemory send(ranks.cuda(), block),
      recv(ranks.cuda(), block * static_cast<uint64_t>(comm.size()));
  for (uint64_t i = 0; i < block; ++i) send.data()[i] = room_byte_of(me, i);
  std::memset(recv.data(), 0xee, recv.bytes());
  const Status status = on_device(comm, me, [&](comm::Device& device) {
    return all_gather(device, send.get(), recv.get(), block, Dtype::kUint8, {});
  });
  EXPECT_TRUE(status.ok()) << status.to_string();
  uint64_t num_wrong = 0;
  for (uint64_t i = 0; i < recv.bytes(); ++i)
    num_wrong += recv.data()[i] == room_byte_of(static_cast<int>(i / block), i % block) ? 0 : 1;
  EXPECT_EQ(num_wrong, 0U) << "of " << recv.bytes();
  EXPECT_TRUE(send.is_guarded() && recv.is_guarded());
}

TEST(Room, CallsAreRightBeforeItInItAndBehindIt) {
  for (const int size : kIsSanitized ? std::vector{2} : std::vector{2, 3}) {
    RoomRanks ranks(size);
    ranks.run({{"BRAID_GPU_DIRECT", "12MiB"}, {"BRAID_GPU_SCRATCH", "32MiB"}},
              [&](comm::Comm& comm, std::barrier<>& all) {
                ASSERT_TRUE(attach(comm.state(), ranks.cuda(), comm.rank(), Memory::kSmall).ok());
                comm::Device& device = *comm.state().device;
                const uint64_t few_bytes = device.arena().memory_bytes();
                const sys::DevicePtr few_at = device.arena().area(kDirectArea).at(0);
                const uint64_t most = 10_MiB / static_cast<uint64_t>(size);
                for (const bool has_room : {false, true, true, false, true}) {
                  if (has_room) {
                    EXPECT_TRUE(make_room(comm.state()).ok());
                  } else {
                    EXPECT_TRUE(device.arena().give_back_room(Deadline::after_ns(20_s)).ok());
                  }
                  EXPECT_EQ(device.arena().has_room(), has_room);
                  EXPECT_EQ(device.arena().memory_bytes() > few_bytes, has_room);
                  all.arrive_and_wait();
                  // Odd and even: direct calls use two halves of an area in turn.
                  for (const uint64_t block : {uint64_t{1000}, most, uint64_t{5}, most + 1})
                    check_all_gather(ranks, comm, block);
                  all.arrive_and_wait();
                  EXPECT_EQ(device.arena().area(kDirectArea).at(0) == few_at, !has_room);
                  if (comm.rank() == 0) {
                    EXPECT_GE(ranks.take_direct(), 4);
                  }
                  all.arrive_and_wait();
                }
              });
  }
}

TEST(Room, WhereOneRankHasNoMemoryAllGoOnWithoutIt) {
  RoomRanks ranks(2);
  ranks.run({{"BRAID_GPU_DIRECT", "1MiB"}}, [&](comm::Comm& comm, std::barrier<>& all) {
    ASSERT_TRUE(attach(comm.state(), ranks.cuda(), comm.rank(), Memory::kSmall).ok());
    all.arrive_and_wait();
    if (comm.rank() == 0) ranks.cuda().fail("alloc", 0, exhausted("no memory"));
    all.arrive_and_wait();
    EXPECT_EQ(make_room(comm.state()).code(), Code::kExhausted);
    EXPECT_FALSE(comm.state().device->arena().has_room());
    EXPECT_TRUE(comm.state().fatal.ok());
    all.arrive_and_wait();
    check_all_gather(ranks, comm, 1 << 16);
    all.arrive_and_wait();
    check_all_gather(ranks, comm, (20 << 20) + 1);  // in pieces of the little scratch that there is
    EXPECT_TRUE(make_room(comm.state()).ok()) << "another time";
    all.arrive_and_wait();
    check_all_gather(ranks, comm, 1 << 16);
  });
}

// health_json() and what else looks meanwhile does so under health_mutex.
TEST(Room, LinksStartBesideWhoLooksAtThem) {
  RoomRanks ranks(2);
  ranks.run({}, [&](comm::Comm& comm, std::barrier<>& all) {
    ASSERT_TRUE(attach(comm.state(), ranks.cuda(), comm.rank(), Memory::kSmall).ok());
    const comm::Device& device = *comm.state().device;
    std::unique_lock looking(comm.state().health_mutex);
    std::thread call([&] {
      const auto scope = sys::CurrentDevice::use(ranks.cuda(), comm.rank());
      const Status made = make_room(comm.state());
      EXPECT_TRUE(made.ok()) << made.to_string();
    });
    bool has_changed = false;
    for (int i = 0; i < 200 && !has_changed; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      has_changed = device.links().main().balance() != nullptr;
    }
    EXPECT_FALSE(has_changed);
    looking.unlock();
    call.join();
    EXPECT_NE(device.links().main().balance(), nullptr);
    EXPECT_FALSE(comm.health_json().empty());
    all.arrive_and_wait();
  });
}

// What "without losing anything" rests on: up to kSmallBytes a comm with little memory sends by the
// same kernels as one with all.
TEST(Room, SmallMessagesGoTheSameWayWithoutIt) {
  for (const int size : {2, 4}) {
    RoomRanks ranks(size);
    ranks.run({{"BRAID_GPU_PACKETS", "128KiB"}, {"BRAID_GPU_LINES", "32MiB"}},
              [&](comm::Comm& comm, std::barrier<>& all) {
                ASSERT_TRUE(attach(comm.state(), ranks.cuda(), comm.rank(), Memory::kSmall).ok());
                comm::Device& device = *comm.state().device;
                std::vector<Path> paths[2];
                for (const int round : {0, 1}) {
                  const bool is_made = round == 0 || make_room(comm.state()).ok();
                  ASSERT_TRUE(is_made);
                  for (const plan::Op op : plan::kAllOps)
                    for (uint64_t bytes = 1; bytes <= kSmallBytes; bytes += 1 + bytes / 16)
                      paths[round].push_back(path_of(
                          device, op,
                          plan::is_one_buffer(op) ? bytes : bytes / static_cast<uint64_t>(size)));
                }
                EXPECT_EQ(paths[0], paths[1]);
                EXPECT_EQ(std::count(paths[0].begin(), paths[0].end(), Path::kCopyEngines), 0);
                all.arrive_and_wait();
              });
  }
}

// The figure is 160 MiB of a GPU's memory by default, whatever the number of ranks; a communicator has up
// to 4 beside its arena.
TEST(Room, ACommThatHasNoneTakesAtMost156MiB) {
  const Config plain;
  for (int size = 2; size <= 16; ++size) {
    const uint64_t direct = direct_area_bytes(kSmallBytes, size);
    const comm::MemoryLayout layout(
        comm::kArenaScratchAt, {4_MiB,
                                {packet_area(plain, size), line_area(plain, size), relay_area(size),
                                 direct_area_of(kSmallBytes, size)}});
    EXPECT_LE(layout.bytes(), 156_MiB) << size << " ranks";
    for (const plan::Op op : plan::kAllOps) {
      EXPECT_GE(direct_most_bytes(op, kSmallBytes, size), kSmallBytes);
      const auto ranks = static_cast<uint64_t>(size);
      const uint64_t bytes = plan::is_one_buffer(op) ? kSmallBytes : kSmallBytes / ranks;
      EXPECT_LE(direct_call_bytes(op, bytes, size), direct) << plan::op_name(op);
    }
  }
}

}  // namespace
}  // namespace braid::coll::device
