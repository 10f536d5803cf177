// Every collective on every mixture of links, with data that names its own place.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/ranks.h"
#include "coll/reduce_scatter/reduce_scatter.h"

namespace braid {
namespace {

using test::Options;
using test::run_comms;

struct Case {
  int size;
  const char* links;
  uint64_t count;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << c.size << " ranks, " << c.links << ", count " << c.count;
}

// The element that rank `r` holds at index `i`: differs in both, small enough that sums of 16 are
// exact in fp32.
uint32_t element(int r, uint64_t i) {
  return static_cast<uint32_t>((i * 7919 + static_cast<uint64_t>(r) * 104729) % 65521);
}

std::vector<uint32_t> filled(int r, uint64_t count) {
  std::vector<uint32_t> v(count);
  for (uint64_t i = 0; i < count; ++i) v[i] = element(r, i);
  return v;
}

// Equal shares on all links, so that every link carries something of every message.
void force_equal(comm::Comm& comm) {
  const size_t n = comm.links().size();
  if (n == 0) return;  // one rank alone
  plan::Shares shares(n, static_cast<uint32_t>(plan::kWhole / n));
  shares[0] += plan::kWhole - static_cast<uint32_t>(n) * static_cast<uint32_t>(plan::kWhole / n);
  ASSERT_TRUE(comm.force_shares(shares).ok());
}

class AllOps : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(comm::Comm&)>& body) {
    run_comms(GetParam().size, {{"BRAID_LINKS", GetParam().links}}, [&](comm::Comm& comm) {
      force_equal(comm);
      body(comm);
    });
  }
  uint64_t count() const { return GetParam().count; }
};

TEST_P(AllOps, AllGather) {
  run([&](comm::Comm& comm) {
    const auto n = static_cast<uint64_t>(comm.size());
    const auto send = filled(comm.rank(), count());
    std::vector<uint32_t> recv(n * count(), 0xdeadbeef);
    const Status status = coll::all_gather(comm, send.data(), recv.data(), count(), Dtype::kUint32);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (uint64_t i = 0; i < recv.size(); ++i)
      ASSERT_EQ(recv[i], element(static_cast<int>(i / count()), i % count()))
          << "index " << i << " rank " << comm.rank();
  });
}

TEST_P(AllOps, AllGatherInPlace) {
  run([&](comm::Comm& comm) {
    const auto n = static_cast<uint64_t>(comm.size());
    std::vector<uint32_t> recv(n * count(), 0xdeadbeef);
    uint32_t* own = recv.data() + static_cast<uint64_t>(comm.rank()) * count();
    for (uint64_t i = 0; i < count(); ++i) own[i] = element(comm.rank(), i);
    ASSERT_TRUE(coll::all_gather(comm, own, recv.data(), count(), Dtype::kUint32).ok());
    for (uint64_t i = 0; i < recv.size(); ++i)
      ASSERT_EQ(recv[i], element(static_cast<int>(i / count()), i % count()));
  });
}

TEST_P(AllOps, AllReduceSum) {
  run([&](comm::Comm& comm) {
    auto buf = filled(comm.rank(), count());
    const auto send = buf;
    std::vector<uint32_t> recv(count(), 0xdeadbeef);
    Status status =
        coll::all_reduce(comm, send.data(), recv.data(), count(), Dtype::kUint32, RedOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    status = coll::all_reduce(comm, buf.data(), buf.data(), count(), Dtype::kUint32, RedOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (uint64_t i = 0; i < count(); ++i) {
      uint32_t sum = 0;
      for (int r = 0; r < comm.size(); ++r) sum += element(r, i);
      ASSERT_EQ(recv[i], sum) << "index " << i;
      ASSERT_EQ(buf[i], sum) << "in place, index " << i;
    }
  });
}

TEST_P(AllOps, ReduceScatterMax) {
  run([&](comm::Comm& comm) {
    const auto n = static_cast<uint64_t>(comm.size());
    auto send = filled(comm.rank(), n * count());
    const uint64_t begin = static_cast<uint64_t>(comm.rank()) * count();
    std::vector<uint32_t> recv(count(), 0xdeadbeef);
    ASSERT_TRUE(
        coll::reduce_scatter(comm, send.data(), recv.data(), count(), Dtype::kUint32, RedOp::kMax)
            .ok());
    ASSERT_TRUE(coll::reduce_scatter(comm, send.data(), send.data() + begin, count(),
                                     Dtype::kUint32, RedOp::kMax)
                    .ok());
    for (uint64_t i = 0; i < count(); ++i) {
      uint32_t best = 0;
      for (int r = 0; r < comm.size(); ++r) best = std::max(best, element(r, begin + i));
      ASSERT_EQ(recv[i], best);
      ASSERT_EQ(send[begin + i], best) << "in place";
    }
  });
}

TEST_P(AllOps, AllToAll) {
  run([&](comm::Comm& comm) {
    const auto n = static_cast<uint64_t>(comm.size());
    auto send = filled(comm.rank(), n * count());
    std::vector<uint32_t> recv(n * count(), 0xdeadbeef);
    ASSERT_TRUE(coll::all_to_all(comm, send.data(), recv.data(), count(), Dtype::kUint32).ok());
    ASSERT_TRUE(coll::all_to_all(comm, send.data(), send.data(), count(), Dtype::kUint32).ok());
    for (uint64_t i = 0; i < recv.size(); ++i) {
      const uint32_t expected = element(static_cast<int>(i / count()),
                                        static_cast<uint64_t>(comm.rank()) * count() + i % count());
      ASSERT_EQ(recv[i], expected) << "index " << i;
      ASSERT_EQ(send[i], expected) << "in place, index " << i;
    }
  });
}

TEST_P(AllOps, AllToAllUneven) {
  // Rank i sends (i + 1) * (j % 3) * c elements to rank j: empty blocks too.
  const auto block = [&](int from, int to) {
    return (static_cast<uint64_t>(from) + 1) * static_cast<uint64_t>(to % 3) * (count() / 4 + 1);
  };
  run([&](comm::Comm& comm) {
    std::vector<uint64_t> sends, receives;
    uint64_t send_total = 0, recv_total = 0;
    for (int r = 0; r < comm.size(); ++r) {
      send_total += sends.emplace_back(block(comm.rank(), r));
      recv_total += receives.emplace_back(block(r, comm.rank()));
    }
    const auto send = filled(comm.rank(), send_total);
    std::vector<uint32_t> recv(recv_total, 0xdeadbeef);
    const Status status =
        coll::all_to_all_v(comm, send.data(), sends, recv.data(), receives, Dtype::kUint32);
    ASSERT_TRUE(status.ok()) << status.to_string();
    uint64_t at = 0;
    for (int from = 0; from < comm.size(); ++from) {
      uint64_t begin = 0;
      for (int to = 0; to < comm.rank(); ++to) begin += block(from, to);
      for (uint64_t i = 0; i < receives[static_cast<size_t>(from)]; ++i)
        ASSERT_EQ(recv[at++], element(from, begin + i));
    }
  });
}

TEST_P(AllOps, BroadcastFromEveryRoot) {
  run([&](comm::Comm& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      auto buf = filled(comm.rank() == root ? 100 + root : 7, count());
      const Status status = coll::broadcast(comm, buf.data(), count(), Dtype::kUint32, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (uint64_t i = 0; i < count(); ++i)
        ASSERT_EQ(buf[i], element(100 + root, i)) << "root " << root << " index " << i;
      ASSERT_TRUE(coll::barrier(comm).ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(HostLanes, AllOps,
                         testing::Values(Case{1, "shm", 1000}, Case{2, "shm", 1},
                                         Case{2, "shm,staged", 100'003}, Case{3, "staged", 4099},
                                         Case{4, "shm", 300'007}, Case{4, "staged", 70'001},
                                         Case{4, "shm,staged", 0}, Case{4, "shm,staged", 3},
                                         Case{4, "shm,staged", 65'536},
                                         Case{5, "shm,staged", 123'457},
                                         Case{8, "shm,staged", 20'011}));
INSTANTIATE_TEST_SUITE_P(WithRdma, AllOps,
                         testing::Values(Case{2, "rdma", 10'007},
                                         Case{3, "shm,staged,rdma", 50'021},
                                         Case{4, "rdma:tcp,staged", 30'011}));

}  // namespace
}  // namespace braid
