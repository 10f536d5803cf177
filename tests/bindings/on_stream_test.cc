// The C interface on GPU memory, between ranks that are threads with fake GPUs: every function's
// arguments arrive where they belong, and what a C caller may get wrong has a code and a message.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "bindings/c/handle.h"
#include "coll/device/fake_sums.h"
#include "support/gpu_ranks.h"

namespace braid {
namespace {

using test::GpuRank;
using test::GuardedMemory;

constexpr int kRanks = 3;
constexpr size_t kCount = 1003;
constexpr size_t kAll = kRanks * kCount;

int32_t value(int rank, size_t i) { return 100'000 * rank + static_cast<int32_t>(i); }
int32_t sum(size_t i) { return 300'000 + kRanks * static_cast<int32_t>(i); }

/// One rank as a C program sees it: a handle, memory, a stream.
class CRank {
 public:
  explicit CRank(GpuRank& rank)
      : rank_(rank.rank()),
        send_(rank.cuda, kAll * sizeof(int32_t)),
        recv_(rank.cuda, kAll * sizeof(int32_t)),
        stream_(sys::own<sys::OwnedStream>(rank.cuda,
                                           rank.cuda.create_stream(sys::StreamPriority::kNormal))
                    .value()) {
    handle_.comm.reset(&rank.comm);
    for (size_t i = 0; i < kAll; ++i) send()[i] = value(rank_, i);
    std::memset(recv(), 0xee, kAll * sizeof(int32_t));
  }
  ~CRank() { (void)handle_.comm.release(); }  // it is the test's
  CRank(const CRank&) = delete;
  CRank& operator=(const CRank&) = delete;

  braid_comm* comm() { return &handle_; }
  int32_t* send() { return reinterpret_cast<int32_t*>(send_.data()); }
  int32_t* recv() { return reinterpret_cast<int32_t*>(recv_.data()); }
  void* stream() const { return stream_.get().handle; }
  int rank() const { return rank_; }
  /// recv()[i] is want(i) for the first `count`, and untouched behind.
  template <typename Want>
  void expect(size_t count, Want&& want) {
    size_t wrong = 0;
    for (size_t i = 0; i < kAll; ++i)
      wrong += recv()[i] != (i < count ? want(i) : static_cast<int32_t>(0xeeeeeeee)) ? 1 : 0;
    EXPECT_EQ(wrong, 0U) << "rank " << rank_;
    EXPECT_TRUE(send_.is_guarded() && recv_.is_guarded());
  }

 private:
  const int rank_;
  braid_comm handle_;
  GuardedMemory send_, recv_;
  sys::OwnedStream stream_;
};

/// Runs body(rank) as every rank. `body` ends with all calls done: nothing here is asynchronous.
void run(const std::function<void(CRank&, GpuRank&)>& body) {
  sys::FakeCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(kRanks, cuda, {}, [&](GpuRank& rank) {
    {
      CRank c(rank);
      rank.all.arrive_and_wait();
      body(c, rank);
      rank.all.arrive_and_wait();
    }
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

void expect_ok(braid_code code) { EXPECT_EQ(code, BRAID_OK) << braid_last_error(); }

TEST(OnStream, Gathers) {
  run([](CRank& c, GpuRank& rank) {
    expect_ok(braid_all_gather_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32, c.stream()));
    rank.all.arrive_and_wait();
    c.expect(kAll, [](size_t i) { return value(static_cast<int>(i / kCount), i % kCount); });
  });
}

TEST(OnStream, GathersInPlace) {
  run([](CRank& c, GpuRank& rank) {
    int32_t* const own = c.recv() + static_cast<size_t>(c.rank()) * kCount;
    std::memcpy(own, c.send(), kCount * sizeof(int32_t));
    rank.all.arrive_and_wait();
    expect_ok(braid_all_gather_on(c.comm(), own, c.recv(), kCount, BRAID_INT32, c.stream()));
    rank.all.arrive_and_wait();
    c.expect(kAll, [](size_t i) { return value(static_cast<int>(i / kCount), i % kCount); });
  });
}

TEST(OnStream, Reduces) {
  run([](CRank& c, GpuRank& rank) {
    expect_ok(braid_all_reduce_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32, BRAID_SUM,
                                  c.stream()));
    rank.all.arrive_and_wait();
    c.expect(kCount, [](size_t i) { return sum(i); });
    expect_ok(braid_all_reduce_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32, BRAID_MAX,
                                  c.stream()));
    rank.all.arrive_and_wait();
    c.expect(kCount, [](size_t i) { return value(kRanks - 1, i); });
  });
}

TEST(OnStream, RootedCalls) {
  run([](CRank& c, GpuRank& rank) {
    const int root = 1;
    int32_t* const at_root = c.rank() == root ? c.recv() : nullptr;
    const size_t here = c.rank() == root ? 1 : 0;
    expect_ok(braid_gather_on(c.comm(), c.send(), at_root, kCount, BRAID_INT32, root, c.stream()));
    rank.all.arrive_and_wait();
    c.expect(here * kAll, [](size_t i) { return value(static_cast<int>(i / kCount), i % kCount); });
    rank.all.arrive_and_wait();
    std::memset(c.recv(), 0xee, kAll * sizeof(int32_t));
    expect_ok(braid_reduce_on(c.comm(), c.send(), at_root, kCount, BRAID_INT32, BRAID_SUM, root,
                              c.stream()));
    rank.all.arrive_and_wait();
    c.expect(here * kCount, [](size_t i) { return sum(i); });
    rank.all.arrive_and_wait();
    expect_ok(braid_scatter_on(c.comm(), c.rank() == root ? c.send() : nullptr, c.recv(), kCount,
                               BRAID_INT32, root, c.stream()));
    rank.all.arrive_and_wait();
    const size_t begin = static_cast<size_t>(c.rank()) * kCount;
    c.expect(kCount, [&](size_t i) { return value(root, begin + i); });
  });
}

TEST(OnStream, UnevenCalls) {
  run([](CRank& c, GpuRank& rank) {
    static constexpr size_t kCounts[kRanks] = {700, 0, 3};
    expect_ok(
        braid_all_gather_v_on(c.comm(), c.send(), c.recv(), kCounts, BRAID_INT32, c.stream()));
    rank.all.arrive_and_wait();
    c.expect(703, [](size_t i) { return i < 700 ? value(0, i) : value(2, i - 700); });
    rank.all.arrive_and_wait();
    std::memset(c.recv(), 0xee, kAll * sizeof(int32_t));
    expect_ok(braid_reduce_scatter_v_on(c.comm(), c.send(), c.recv(), kCounts, BRAID_INT32,
                                        BRAID_SUM, c.stream()));
    rank.all.arrive_and_wait();
    const size_t begin = c.rank() > 0 ? 700 : 0;
    c.expect(kCounts[c.rank()], [&](size_t i) { return sum(begin + i); });
  });
}

TEST(OnStream, Messages) {
  run([](CRank& c, GpuRank& rank) {
    if (c.rank() == 0)
      expect_ok(braid_send_on(c.comm(), c.send(), kCount, BRAID_INT32, 2, c.stream()));
    if (c.rank() == 2)
      expect_ok(braid_recv_on(c.comm(), c.recv(), kCount, BRAID_INT32, 0, c.stream()));
    rank.all.arrive_and_wait();
    c.expect(c.rank() == 2 ? kCount : 0, [](size_t i) { return value(0, i); });
    int32_t x = 0;
    EXPECT_EQ(braid_send_on(c.comm(), &x, 1, BRAID_INT32, (c.rank() + 1) % kRanks, c.stream()),
              BRAID_INVALID_ARGUMENT);
    EXPECT_NE(std::string(braid_last_error()).find("no GPU memory"), std::string::npos);
    EXPECT_EQ(braid_recv_on(c.comm(), c.recv(), 1, BRAID_INT32, c.rank(), c.stream()),
              BRAID_INVALID_ARGUMENT);
  });
}

TEST(OnStream, ReducesAndScatters) {
  run([](CRank& c, GpuRank& rank) {
    expect_ok(braid_reduce_scatter_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32, BRAID_SUM,
                                      c.stream()));
    rank.all.arrive_and_wait();
    const size_t begin = static_cast<size_t>(c.rank()) * kCount;
    c.expect(kCount, [&](size_t i) { return sum(begin + i); });
  });
}

TEST(OnStream, ExchangesEvenBlocks) {
  run([](CRank& c, GpuRank& rank) {
    expect_ok(braid_all_to_all_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32, c.stream()));
    rank.all.arrive_and_wait();
    const size_t begin = static_cast<size_t>(c.rank()) * kCount;
    c.expect(kAll,
             [&](size_t i) { return value(static_cast<int>(i / kCount), begin + i % kCount); });
  });
}

// Rank r sends 10 * j elements to rank j.
TEST(OnStream, ExchangesUnevenBlocks) {
  run([](CRank& c, GpuRank& rank) {
    const auto own = static_cast<size_t>(c.rank());
    const std::array<size_t, kRanks> sent = {0, 10, 20}, received = {10 * own, 10 * own, 10 * own};
    expect_ok(braid_all_to_all_v_on(c.comm(), c.send(), sent.data(), c.recv(), received.data(),
                                    BRAID_INT32, c.stream()));
    rank.all.arrive_and_wait();
    const size_t begin = own < 2 ? 0 : 10;
    c.expect(10 * own * kRanks, [&](size_t i) {
      return value(static_cast<int>(i / (10 * own)), begin + i % (10 * own));
    });
  });
}

TEST(OnStream, Broadcasts) {
  run([](CRank& c, GpuRank& rank) {
    std::memcpy(c.recv(), c.send(), kCount * sizeof(int32_t));
    rank.all.arrive_and_wait();
    expect_ok(braid_broadcast_on(c.comm(), c.recv(), kCount, BRAID_INT32, 2, c.stream()));
    expect_ok(braid_barrier_on(c.comm(), c.stream()));
    rank.all.arrive_and_wait();
    c.expect(kCount, [](size_t i) { return value(2, i); });
  });
}

TEST(OnStream, RegistersMemory) {
  run([](CRank& c, GpuRank& rank) {
    const auto memory = reinterpret_cast<sys::DevicePtr>(c.recv());
    expect_ok(braid_register(c.comm(), c.recv(), kAll * sizeof(int32_t)));
    EXPECT_NE(rank.device.registrations().find(memory, 4).value().window, nullptr);
    expect_ok(braid_all_gather_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32, c.stream()));
    rank.all.arrive_and_wait();
    c.expect(kAll, [](size_t i) { return value(static_cast<int>(i / kCount), i % kCount); });
    expect_ok(braid_unregister(c.comm(), c.recv()));
    EXPECT_EQ(rank.device.registrations().find(memory, 4).value().window, nullptr);
    EXPECT_EQ(braid_unregister(c.comm(), c.recv()), BRAID_INVALID_ARGUMENT);
    // One rank's refusal is everybody's.
    EXPECT_NE(braid_register(c.comm(), c.rank() == 1 ? nullptr : c.recv(), 100), BRAID_OK);
    EXPECT_NE(std::string(braid_last_error()).find("rank 1"), std::string::npos)
        << braid_last_error();
  });
}

TEST(OnStream, MistakesAreToldAtOnce) {
  run([](CRank& c, GpuRank& rank) {
    const auto expect_refused = [](braid_code code, const char* why) {
      EXPECT_EQ(code, BRAID_INVALID_ARGUMENT) << why;
      EXPECT_NE(std::string(braid_last_error()).find(why), std::string::npos) << braid_last_error();
    };
    static std::array<int32_t, kAll> on_host;
    const auto gather = [&](const void* send, void* recv, size_t count, braid_dtype dtype) {
      return braid_all_gather_on(c.comm(), send, recv, count, dtype, c.stream());
    };
    expect_refused(gather(on_host.data(), c.recv(), kCount, BRAID_INT32), "send is no GPU memory");
    expect_refused(gather(c.send(), on_host.data(), kCount, BRAID_INT32), "recv is no GPU memory");
    expect_refused(gather(nullptr, c.recv(), kCount, BRAID_INT32), "send is null");
    expect_refused(gather(c.recv() + 1, c.recv(), kCount, BRAID_INT32), "overlap");
    expect_refused(gather(c.send(), c.recv(), SIZE_MAX, BRAID_INT32), "2^62");
    expect_refused(gather(c.send(), c.recv(), kCount, static_cast<braid_dtype>(-3)), "dtype");
    expect_refused(braid_all_reduce_on(c.comm(), c.send(), c.recv(), kCount, BRAID_INT32,
                                       static_cast<braid_op>(77), c.stream()),
                   "reduction op");
    expect_refused(braid_broadcast_on(c.comm(), c.recv(), 1, BRAID_INT32, kRanks, c.stream()),
                   "root");
    expect_refused(braid_all_to_all_v_on(c.comm(), c.send(), nullptr, c.recv(), nullptr,
                                         BRAID_INT32, c.stream()),
                   "NULL");
    expect_refused(braid_barrier_on(nullptr, c.stream()), "comm is NULL");
    const int other = (c.rank() + 1) % kRanks;
    EXPECT_TRUE(rank.cuda.use_device(other).ok());
    expect_refused(gather(c.send(), c.recv(), kCount, BRAID_INT32), "the calling thread's GPU is");
    EXPECT_TRUE(rank.cuda.use_device(c.rank()).ok());
    expect_ok(gather(nullptr, nullptr, 0, BRAID_INT32));
    expect_ok(gather(c.send(), c.recv(), kCount, BRAID_INT32));
  });
}

}  // namespace
}  // namespace braid
