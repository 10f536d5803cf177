// Calls with a root and with uneven blocks, and messages, on the memory of fake GPUs: every byte of
// every result, the guards around it, and that what a call leaves on the stream is joined to it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "coll/device/fake_sums.h"
#include "coll/messages/on_gpu.h"
#include "support/forked.h"
#include "support/gpu_ranks.h"
#include "support/ordered_cuda.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;
using test::GuardedMemory;

constexpr uint64_t kWord = sizeof(int32_t);
// More than fits the spare memory at once, and more than one piece of a pair's rounds.
constexpr uint64_t kLong = 5'000'003;

int32_t word(int rank, uint64_t i) { return static_cast<int32_t>(i * 7919) ^ (rank * 0x01010101); }
int32_t word_sum(int size, uint64_t i) {
  uint32_t sum = 0;
  for (int r = 0; r < size; ++r) sum += static_cast<uint32_t>(word(r, i));
  return static_cast<int32_t>(sum);
}

/// `count` words of device memory.
class Words {
 public:
  Words(GpuRank& rank, uint64_t count) : memory_(rank.cuda, count * kWord), count_(count) {
    if (count > 0) std::memset(memory_.data(), 0xee, count * kWord);
  }
  sys::DevicePtr get(uint64_t at = 0) const { return memory_.get() + at * kWord; }
  int32_t* data() { return reinterpret_cast<int32_t*>(memory_.data()); }
  template <typename Word>
  void set(uint64_t at, uint64_t count, Word&& one) {
    for (uint64_t i = 0; i < count; ++i) data()[at + i] = one(i);
  }
  template <typename Word>
  void expect(uint64_t at, uint64_t count, Word&& want, const char* what) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; ++i) wrong += data()[at + i] != want(i) ? 1 : 0;
    EXPECT_EQ(wrong, 0U) << what << " of " << count_;
    EXPECT_TRUE(memory_.is_guarded()) << what;
  }

 private:
  GuardedMemory memory_;
  uint64_t count_;
};

/// One rank: calls on a stream of its own, which the test waits for.
class Rooted {
 public:
  explicit Rooted(GpuRank& rank, test::OrderedCuda& cuda)
      : rank_(rank),
        cuda_(cuda),
        stream_(sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal))
                    .value()) {}
  template <typename Body>
  void call(Body&& body) {
    rank_.all.arrive_and_wait();  // inputs are written
    const Status status = on_device(rank_.comm, rank_.rank(),
                                    [&](comm::Device& d) { return body(d, stream_.get()); });
    EXPECT_TRUE(status.ok()) << "rank " << rank_.rank() << ": " << status.to_string();
    cuda_.expect_joined(stream_.get());
    rank_.all.arrive_and_wait();
    EXPECT_TRUE(rank_.device.faults().status().ok()) << rank_.device.faults().status().to_string();
  }

 private:
  GpuRank& rank_;
  test::OrderedCuda& cuda_;
  sys::OwnedStream stream_;
};

/// Runs body(rank, calls) on `size` ranks.
void run_rooted(int size, const std::function<void(GpuRank&, Rooted&)>& body) {
  test::OrderedCuda cuda(size);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(size, cuda, {}, [&](GpuRank& rank) {
    {
      Rooted calls(rank, cuda);
      body(rank, calls);
    }
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

struct RootedCase {
  int size;
  uint64_t count;
};
void PrintTo(const RootedCase& c, std::ostream* os) {
  *os << c.size << " ranks, " << c.count << " words";
}
class DeviceRooted : public testing::TestWithParam<RootedCase> {};

TEST_P(DeviceRooted, GathersAndScatters) {
  const auto [size, count] = GetParam();
  run_rooted(size, [&, n = size, c = count](GpuRank& rank, Rooted& calls) {
    const int me = rank.rank();
    const auto all = c * static_cast<uint64_t>(n);
    for (const int root : {0, n - 1}) {
      Words send(rank, all), recv(rank, me == root ? all : 0), block(rank, c);
      send.set(0, all, [&](uint64_t i) { return word(me, i); });
      calls.call([&](comm::Device& d, sys::Stream stream) {
        return device::gather(d, send.get(), recv.get(), c, Dtype::kInt32, root, stream);
      });
      for (int r = 0; r < n && me == root; ++r)
        recv.expect(
            static_cast<uint64_t>(r) * c, c, [&](uint64_t i) { return word(r, i); }, "gathered");
      calls.call([&](comm::Device& d, sys::Stream stream) {
        return device::scatter(d, send.get(), block.get(), c, Dtype::kInt32, root, stream);
      });
      const uint64_t begin = static_cast<uint64_t>(me) * c;
      block.expect(0, c, [&](uint64_t i) { return word(root, begin + i); }, "scattered");
      // Root's own block is in its place already.
      const uint64_t own = static_cast<uint64_t>(root) * c;
      calls.call([&](comm::Device& d, sys::Stream stream) {
        return device::scatter(d, send.get(), me == root ? send.get(own) : block.get(), c,
                               Dtype::kInt32, root, stream);
      });
      send.expect(0, all, [&](uint64_t i) { return word(me, i); }, "what was sent");
    }
  });
}

TEST_P(DeviceRooted, ReducesToARoot) {
  const auto [size, count] = GetParam();
  run_rooted(size, [&, n = size, c = count](GpuRank& rank, Rooted& calls) {
    const int me = rank.rank(), root = n - 1;
    Words send(rank, c), recv(rank, c);
    send.set(0, c, [&](uint64_t i) { return word(me, i); });
    for (const bool in_place : {false, true}) {
      const sys::DevicePtr to = in_place ? send.get() : recv.get();
      calls.call([&](comm::Device& d, sys::Stream stream) {
        return device::rooted_reduce(d, send.get(), me == root ? to : 0, c, Dtype::kInt32,
                                     RedOp::kSum, root, stream);
      });
    }
    const auto sum = [&](uint64_t i) { return word_sum(n, i); };
    const auto mine = [&](uint64_t i) { return word(me, i); };
    if (me == root) {
      recv.expect(0, c, sum, "sums");
      send.expect(0, c, sum, "sums in place");
    } else {
      send.expect(0, c, mine, "what was sent");
      recv.expect(0, c, [](uint64_t) { return static_cast<int32_t>(0xeeeeeeee); }, "not root's");
    }
  });
}

// Root reduces into memory that all have registered, which the others' results do not go to.
TEST(DeviceRootedMemory, RegisteredOnAllRanks) {
  run_rooted(2, [](GpuRank& rank, Rooted& calls) {
    Words buf(rank, 1000);
    buf.set(0, 1000, [&](uint64_t i) { return word(rank.rank(), i); });
    ASSERT_TRUE(rank.device.registrations().add(buf.get(), 1000 * kWord).ok());
    calls.call([&](comm::Device& d, sys::Stream stream) {
      return device::rooted_reduce(d, buf.get(), buf.get(), 1000, Dtype::kInt32, RedOp::kSum, 0,
                                   stream);
    });
    if (rank.rank() == 0) buf.expect(0, 1000, [](uint64_t i) { return word_sum(2, i); }, "sums");
    ASSERT_TRUE(rank.device.registrations().remove(buf.get()).ok());
  });
}

TEST_P(DeviceRooted, UnevenBlocks) {
  const auto [size, count] = GetParam();
  run_rooted(size, [&, n = size, c = count](GpuRank& rank, Rooted& calls) {
    const int me = rank.rank();
    std::vector<uint64_t> counts;  // none of rank 1, no two others alike
    for (int r = 0; r < n; ++r) counts.push_back(r == 1 ? 0 : c / (static_cast<uint64_t>(r) + 1));
    const auto begin_of = [&](int r) {
      return std::accumulate(counts.begin(), counts.begin() + r, uint64_t{0});
    };
    const uint64_t total = begin_of(n), begin = begin_of(me), own = counts[static_cast<size_t>(me)];
    Words send(rank, own), whole(rank, total), in_place(rank, total), sums(rank, own);
    send.set(0, own, [&](uint64_t i) { return word(me, i); });
    in_place.set(begin, own, [&](uint64_t i) { return word(me, i); });
    calls.call([&](comm::Device& d, sys::Stream stream) {
      return device::all_gather_v(d, send.get(), whole.get(), counts, Dtype::kInt32, stream);
    });
    calls.call([&](comm::Device& d, sys::Stream stream) {
      return device::all_gather_v(d, in_place.get(begin), in_place.get(), counts, Dtype::kInt32,
                                  stream);
    });
    for (int r = 0; r < n; ++r) {
      const auto theirs = [&](uint64_t i) { return word(r, i); };
      whole.expect(begin_of(r), counts[static_cast<size_t>(r)], theirs, "gathered");
      in_place.expect(begin_of(r), counts[static_cast<size_t>(r)], theirs, "gathered in place");
    }
    whole.set(0, total, [&](uint64_t i) { return word(me, i); });
    calls.call([&](comm::Device& d, sys::Stream stream) {
      return device::reduce_scatter_v(d, whole.get(), sums.get(), counts, Dtype::kInt32,
                                      RedOp::kSum, stream);
    });
    calls.call([&](comm::Device& d, sys::Stream stream) {
      return device::reduce_scatter_v(d, whole.get(), whole.get(begin), counts, Dtype::kInt32,
                                      RedOp::kSum, stream);
    });
    const auto sum = [&](uint64_t i) { return word_sum(n, begin + i); };
    sums.expect(0, own, sum, "sums");
    whole.expect(begin, own, sum, "sums in place");
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceRooted,
                         testing::Values(RootedCase{1, 100}, RootedCase{2, 0}, RootedCase{2, 1},
                                         RootedCase{2, kLong}, RootedCase{3, 4099},
                                         RootedCase{4, 70'001}));

TEST(DeviceRootedErrors, CountsThatDifferAreTroubleForAll) {
  test::OrderedCuda cuda(3);
  test::define_team_kernels(cuda);
  test::run_gpus(3, cuda, {{"BRAID_TIMEOUT", "2s"}}, [&](GpuRank& rank) {
    Words send(rank, 100), recv(rank, 300);
    const std::vector<uint64_t> counts{5, rank.rank() == 2 ? 7U : 6U, 4};
    (void)on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
      return device::all_gather_v(d, send.get(), recv.get(), counts, Dtype::kInt32, {});
    });
    rank.all.arrive_and_wait();
    const Deadline deadline = Deadline::after_ns(10_s);
    while (rank.device.faults().status().ok() && !deadline.passed()) std::this_thread::yield();
    EXPECT_FALSE(rank.device.faults().status().ok()) << "rank " << rank.rank();
    rank.all.arrive_and_wait();
  });
}

// It took 16 MiB then, and ended the comm where another library had taken the rest of a GPU.
TEST(DeviceRootedErrors, AReduceTakesNoMemory) {
  test::OrderedCuda cuda(3);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(3, cuda, {}, [&](GpuRank& rank) {
    Words send(rank, 100), recv(rank, 100);
    rank.all.arrive_and_wait();
    if (rank.rank() == 1) cuda.fail("alloc", 0, exhausted("another library has it all"));
    rank.all.arrive_and_wait();
    const Status status = on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
      return device::rooted_reduce(d, send.get(), recv.get(), 100, Dtype::kInt32, RedOp::kSum, 0,
                                   {});
    });
    EXPECT_TRUE(status.ok()) << status.to_string();
    rank.all.arrive_and_wait();
    if (rank.rank() == 1) {
      EXPECT_FALSE(cuda.alloc(1).ok());  // what was to fail, and no call needed
    }
  });
}

// Ranks with a GPU each, and none that has made a Device: a message needs none.
TEST(DeviceMessages, GpuToGpuAndGpuToHost) {
  test::OrderedCuda cuda(2);
  test::run_gpu_comms(2, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    const auto scope = sys::CurrentDevice::use(cuda, comm.rank());
    ASSERT_TRUE(scope.ok());
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{300'001}}) {
      const uint64_t bytes = count * kWord;
      GuardedMemory memory(cuda, bytes);
      auto* const words = reinterpret_cast<int32_t*>(memory.data());
      const bool is_sender = comm.rank() == 0;
      for (uint64_t i = 0; i < count; ++i) words[i] = is_sender ? word(0, i) : -1;
      void* const data = sys::pointer_to<void>(memory.get());
      const Message on_gpu{is_sender ? Message::Way::kSend : Message::Way::kRecv, 1 - comm.rank(),
                           data, count, Dtype::kInt32};
      const Status status = exchange_one(comm, cuda, comm.rank(), on_gpu, {});
      ASSERT_TRUE(status.ok()) << status.to_string();
      uint64_t wrong = 0;
      for (uint64_t i = 0; i < count; ++i) wrong += words[i] != word(0, i) ? 1 : 0;
      EXPECT_EQ(wrong, 0U);
      EXPECT_TRUE(memory.is_guarded());
      std::vector<int32_t> on_host(count, -1);
      const Status mixed = is_sender ? exchange_one(comm, cuda, 0, on_gpu, {})
                                     : recv(comm, on_host.data(), count, Dtype::kInt32, 0);
      ASSERT_TRUE(mixed.ok()) << mixed.to_string();
      for (uint64_t i = 0; i < count && !is_sender; ++i) wrong += on_host[i] != word(0, i) ? 1 : 0;
      EXPECT_EQ(wrong, 0U);
    }
    all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

/// Notes of memory that is pinned whether a child that is forked then has it, too.
class ForkingCuda : public test::OrderedCuda {
 public:
  using OrderedCuda::OrderedCuda;
  Result<sys::DevicePtr> register_host(void* memory, uint64_t bytes) override {
    ++num_pinned;
    num_with_a_child += test::child_has(memory) ? 1 : 0;
    return OrderedCuda::register_host(memory, bytes);
  }
  std::atomic<int> num_pinned = 0, num_with_a_child = 0;
};

// Else the GPU would write what came into a page that had become the child's.
TEST(DeviceMessages, StagingIsNotAForkedChilds) {
  ForkingCuda cuda(2);
  test::run_gpu_comms(2, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    const auto scope = sys::CurrentDevice::use(cuda, comm.rank());
    const GuardedMemory memory(cuda, 100 * kWord);
    const Message message{comm.rank() == 0 ? Message::Way::kSend : Message::Way::kRecv,
                          1 - comm.rank(), sys::pointer_to<void>(memory.get()), 100, Dtype::kInt32};
    const Status status = exchange_one(comm, cuda, comm.rank(), message, {});
    EXPECT_TRUE(status.ok()) << status.to_string();
    all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.num_pinned, 2);
  EXPECT_EQ(cuda.num_with_a_child, 0);
}

// As the thread that makes asynchronous calls: the staging's owner needs a context to unpin it.
TEST(DeviceMessages, AThreadWithoutAContextLeavesNothingPinned) {
  test::OrderedCuda cuda(2);
  test::run_gpu_comms(2, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    std::optional<GuardedMemory> memory;
    const auto on_gpu = [&](const std::function<void()>& what) {
      const auto scope = sys::CurrentDevice::use(cuda, comm.rank());
      what();
    };
    on_gpu([&] { memory.emplace(cuda, 100 * kWord); });
    const Message message{comm.rank() == 0 ? Message::Way::kSend : Message::Way::kRecv,
                          1 - comm.rank(), sys::pointer_to<void>(memory->get()), 100,
                          Dtype::kInt32};
    for (int i = 0; i < 3; ++i) {
      const Status status = exchange_one(comm, cuda, comm.rank(), message, {});
      EXPECT_TRUE(status.ok()) << i << ": " << status.to_string();
      all.arrive_and_wait();
      EXPECT_EQ(cuda.alive().hosts, 0U) << i;
      all.arrive_and_wait();
    }
    on_gpu([&] { memory.reset(); });
    all.arrive_and_wait();
  });
}

TEST(DeviceMessages, WhatOneRankCanSeeIsRefusedThere) {
  test::OrderedCuda cuda(2);
  test::run_gpu_comms(2, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    // A GPU that is not there: known before the peer is asked for anything.
    int32_t x = 0;
    const Message message{Message::Way::kSend, 1 - comm.rank(), &x, 1, Dtype::kInt32};
    EXPECT_FALSE(exchange_one(comm, cuda, 7, message, {}).ok());
    const Message to_itself{Message::Way::kSend, comm.rank(), &x, 1, Dtype::kInt32};
    EXPECT_EQ(exchange_one(comm, cuda, comm.rank(), to_itself, {}).code(), Code::kInvalidArgument);
    all.arrive_and_wait();
  });
}

/// Rank 0 sends `count` words of its GPU to rank 1, or receives them, and cannot: both hear of it, rank
/// 1 long before its deadline, and every later call does.
void expect_both_hear_of(sys::FakeCuda& cuda, Message::Way way, uint64_t count, const char* why) {
  test::run_gpu_comms(2, {{"BRAID_TIMEOUT", "60s"}}, [&](comm::Comm& comm, std::barrier<>& all) {
    const auto scope = sys::CurrentDevice::use(cuda, comm.rank());
    ASSERT_TRUE(scope.ok());
    const int64_t begin_ns = now_ns();
    GuardedMemory memory(cuda, 100 * kWord);
    std::vector<int32_t> on_host(100);
    const Message message{way, 1, sys::pointer_to<void>(memory.get()), count, Dtype::kInt32};
    const Status status = comm.rank() == 0 ? exchange_one(comm, cuda, 0, message, {})
                          : way == Message::Way::kSend
                              ? recv(comm, on_host.data(), 100, Dtype::kInt32, 0)
                              : send(comm, on_host.data(), 100, Dtype::kInt32, 0);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find("rank 1: "), std::string::npos) << status.to_string();
    all.arrive_and_wait();
    int32_t x = 0;
    EXPECT_FALSE(exchange(comm, {}).ok()) << "rank " << comm.rank();
    EXPECT_FALSE(send(comm, &x, 1, Dtype::kInt32, 1 - comm.rank()).ok());
    EXPECT_LT(now_ns() - begin_ns, 30_s);
    all.arrive_and_wait();
  });
}

// What only one rank knows: the other one would wait for it until its deadline.
TEST(DeviceMessages, WhatOneRankCannotBeginEndsOnBoth) {
  for (const Message::Way way : {Message::Way::kSend, Message::Way::kRecv}) {
    test::OrderedCuda cuda(2);
    cuda.fail("register_host", 0, exhausted("no memory is to be pinned"));
    expect_both_hear_of(cuda, way, 100, "no memory is to be pinned");
  }
  test::OrderedCuda cuda(2);
  cuda.fail("copy", 0, driver_error("the copy is broken"));
  expect_both_hear_of(cuda, Message::Way::kSend, 100, "the copy is broken");
}

TEST(DeviceMessages, NoHostMemoryForOneEndsOnBoth) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer's allocator ends the process";
  test::OrderedCuda cuda(2);
  constexpr uint64_t kMoreThanThereAreAddresses = uint64_t{1} << 46;  // words
  expect_both_hear_of(cuda, Message::Way::kRecv, kMoreThanThereAreAddresses, "no host memory");
}

}  // namespace
}  // namespace braid::coll::device
