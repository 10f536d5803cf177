// Every collective, and messages, on every mixture of links, with data that names its own place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/gather/gather.h"
#include "coll/messages/messages.h"
#include "coll/ranks.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/rooted_reduce/rooted_reduce.h"
#include "coll/scatter/scatter.h"
#include "support/rows.h"

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

// Rank 3 of 4 sends up to 12 * 75'002 elements unevenly, and every rank of 4 has 4 * 300'007.
constexpr uint64_t kMostElements = 4 * 300'007;
const test::Rows<uint32_t>& rows() {
  static const test::Rows<uint32_t> made(8, kMostElements);
  return made;
}

using Elements = std::vector<uint32_t>;

// The first `count` elements of a rank's row.
Elements filled(int rank, uint64_t count) {
  const uint32_t* const row = rows().of(rank, 0);
  return {row, row + count};
}

void append(Elements& to, const uint32_t* from, uint64_t count) {
  to.insert(to.end(), from, from + count);
}

void expect_same(const Elements& got, const Elements& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  ASSERT_EQ(test::first_wrong(got.data(), want.data(), want.size()), want.size()) << what;
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
  uint64_t all(const comm::Comm& comm) const {
    return count() * static_cast<uint64_t>(comm.size());
  }
  uint64_t own_begin(const comm::Comm& comm) const {
    return count() * static_cast<uint64_t>(comm.rank());
  }
  static constexpr uint32_t kUnwritten = 0xdeadbeef;
};

TEST_P(AllOps, AllGather) {
  run([&](comm::Comm& comm) {
    const Elements send = filled(comm.rank(), count());
    Elements recv(all(comm), kUnwritten), want;
    const Status status = coll::all_gather(comm, send.data(), recv.data(), count(), Dtype::kUint32);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (int r = 0; r < comm.size(); ++r) append(want, rows().of(r, 0), count());
    expect_same(recv, want, "gathered");
  });
}

TEST_P(AllOps, AllGatherInPlace) {
  run([&](comm::Comm& comm) {
    Elements recv(all(comm), kUnwritten), want;
    const Elements send = filled(comm.rank(), count());
    uint32_t* own = recv.data() + own_begin(comm);
    std::copy(send.begin(), send.end(), own);
    ASSERT_TRUE(coll::all_gather(comm, own, recv.data(), count(), Dtype::kUint32).ok());
    for (int r = 0; r < comm.size(); ++r) append(want, rows().of(r, 0), count());
    expect_same(recv, want, "gathered");
  });
}

TEST_P(AllOps, AllReduceSum) {
  run([&](comm::Comm& comm) {
    Elements buf = filled(comm.rank(), count());
    const Elements send = buf;
    Elements recv(count(), kUnwritten), want;
    Status status =
        coll::all_reduce(comm, send.data(), recv.data(), count(), Dtype::kUint32, RedOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    status = coll::all_reduce(comm, buf.data(), buf.data(), count(), Dtype::kUint32, RedOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    append(want, rows().sum(comm.size(), 0), count());
    expect_same(recv, want, "sums");
    expect_same(buf, want, "sums in place");
  });
}

TEST_P(AllOps, ReduceScatterMax) {
  run([&](comm::Comm& comm) {
    Elements send = filled(comm.rank(), all(comm));
    const uint64_t begin = own_begin(comm);
    Elements recv(count(), kUnwritten), want(count(), 0);
    ASSERT_TRUE(
        coll::reduce_scatter(comm, send.data(), recv.data(), count(), Dtype::kUint32, RedOp::kMax)
            .ok());
    ASSERT_TRUE(coll::reduce_scatter(comm, send.data(), send.data() + begin, count(),
                                     Dtype::kUint32, RedOp::kMax)
                    .ok());
    for (int r = 0; r < comm.size(); ++r) {
      const uint32_t* const block = rows().of(r, 0) + begin;
      for (uint64_t i = 0; i < count(); ++i) want[i] = std::max(want[i], block[i]);
    }
    expect_same(recv, want, "largest");
    expect_same({send.data() + begin, send.data() + begin + count()}, want, "largest in place");
  });
}

TEST_P(AllOps, AllToAll) {
  run([&](comm::Comm& comm) {
    Elements send = filled(comm.rank(), all(comm));
    Elements recv(all(comm), kUnwritten), want;
    ASSERT_TRUE(coll::all_to_all(comm, send.data(), recv.data(), count(), Dtype::kUint32).ok());
    ASSERT_TRUE(coll::all_to_all(comm, send.data(), send.data(), count(), Dtype::kUint32).ok());
    for (int r = 0; r < comm.size(); ++r) append(want, rows().of(r, 0) + own_begin(comm), count());
    expect_same(recv, want, "exchanged");
    expect_same(send, want, "exchanged in place");
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
    ASSERT_LE(send_total, kMostElements);
    const Elements send = filled(comm.rank(), send_total);
    Elements recv(recv_total, kUnwritten), want;
    const Status status =
        coll::all_to_all_v(comm, send.data(), sends, recv.data(), receives, Dtype::kUint32);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (int from = 0; from < comm.size(); ++from) {
      uint64_t begin = 0;
      for (int to = 0; to < comm.rank(); ++to) begin += block(from, to);
      append(want, rows().of(from, 0) + begin, block(from, comm.rank()));
    }
    expect_same(recv, want, "exchanged");
  });
}

TEST_P(AllOps, BroadcastFromEveryRoot) {
  run([&](comm::Comm& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      const uint32_t* const wanted = rows().of(root, 1);
      const Elements want(wanted, wanted + count());
      Elements buf = comm.rank() == root ? want : filled(comm.rank(), count());
      const Status status = coll::broadcast(comm, buf.data(), count(), Dtype::kUint32, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_same(buf, want, "broadcast");
      ASSERT_TRUE(coll::barrier(comm).ok());
    }
  });
}

// Blocks of rank r: none of rank 1, and of no two others alike.
std::vector<uint64_t> uneven_counts(int size, uint64_t count) {
  std::vector<uint64_t> counts;
  for (int r = 0; r < size; ++r)
    counts.push_back(r == 1 ? 0
                            : count / static_cast<uint64_t>(size) * static_cast<uint64_t>(r) + 3);
  return counts;
}
uint64_t sum_before(const std::vector<uint64_t>& counts, int rank) {
  uint64_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += counts[static_cast<size_t>(r)];
  return sum;
}

TEST_P(AllOps, AllGatherUneven) {
  run([&](comm::Comm& comm) {
    const std::vector<uint64_t> counts = uneven_counts(comm.size(), count());
    const uint64_t own = counts[static_cast<size_t>(comm.rank())];
    const uint64_t total = sum_before(counts, comm.size());
    const Elements send = filled(comm.rank(), own);
    Elements recv(total, kUnwritten), want, in_place(total, kUnwritten);
    uint32_t* const place = in_place.data() + sum_before(counts, comm.rank());
    std::copy(send.begin(), send.end(), place);
    for (int r = 0; r < comm.size(); ++r)
      append(want, rows().of(r, 0), counts[static_cast<size_t>(r)]);
    Status status = coll::all_gather_v(comm, send.data(), recv.data(), counts, Dtype::kUint32);
    ASSERT_TRUE(status.ok()) << status.to_string();
    status = coll::all_gather_v(comm, place, in_place.data(), counts, Dtype::kUint32);
    ASSERT_TRUE(status.ok()) << status.to_string();
    expect_same(recv, want, "gathered");
    expect_same(in_place, want, "gathered in place");
  });
}

TEST_P(AllOps, ReduceScatterUneven) {
  run([&](comm::Comm& comm) {
    const std::vector<uint64_t> counts = uneven_counts(comm.size(), count());
    const uint64_t own = counts[static_cast<size_t>(comm.rank())];
    const uint64_t begin = sum_before(counts, comm.rank());
    Elements send = filled(comm.rank(), sum_before(counts, comm.size()));
    Elements recv(own, kUnwritten), want;
    append(want, rows().sum(comm.size(), 0) + begin, own);
    Status status =
        coll::reduce_scatter_v(comm, send.data(), recv.data(), counts, Dtype::kUint32, RedOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    status = coll::reduce_scatter_v(comm, send.data(), send.data() + begin, counts, Dtype::kUint32,
                                    RedOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    expect_same(recv, want, "sums");
    expect_same({send.begin() + static_cast<std::ptrdiff_t>(begin),
                 send.begin() + static_cast<std::ptrdiff_t>(begin + own)},
                want, "sums in place");
  });
}

TEST_P(AllOps, ReduceToEveryRoot) {
  run([&](comm::Comm& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      const bool is_root = comm.rank() == root;
      const Elements before = filled(comm.rank(), count());
      Elements send = before, recv(is_root ? count() : 0, kUnwritten), want;
      append(want, rows().sum(comm.size(), 0), count());
      Status status = coll::rooted_reduce(comm, send.data(), is_root ? recv.data() : nullptr,
                                          count(), Dtype::kUint32, RedOp::kSum, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_same(send, before, "what was sent");
      if (is_root) expect_same(recv, want, "sums");
      status = coll::rooted_reduce(comm, send.data(), is_root ? send.data() : nullptr, count(),
                                   Dtype::kUint32, RedOp::kSum, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_same(send, is_root ? want : before, "sums in place");
    }
  });
}

TEST_P(AllOps, GatherOnEveryRoot) {
  run([&](comm::Comm& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      const bool is_root = comm.rank() == root;
      const Elements send = filled(comm.rank(), count());
      Elements recv(is_root ? all(comm) : 0, kUnwritten), want, in_place = recv;
      Status status = coll::gather(comm, send.data(), is_root ? recv.data() : nullptr, count(),
                                   Dtype::kUint32, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      uint32_t* const place = is_root ? in_place.data() + own_begin(comm) : nullptr;
      if (is_root) std::copy(send.begin(), send.end(), place);
      status = coll::gather(comm, is_root ? place : send.data(), in_place.data(), count(),
                            Dtype::kUint32, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      if (!is_root) continue;
      for (int r = 0; r < comm.size(); ++r) append(want, rows().of(r, 0), count());
      expect_same(recv, want, "gathered");
      expect_same(in_place, want, "gathered in place");
    }
  });
}

TEST_P(AllOps, ScatterFromEveryRoot) {
  run([&](comm::Comm& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      const bool is_root = comm.rank() == root;
      Elements send = is_root ? filled(root, all(comm)) : Elements(), recv(count(), kUnwritten);
      Status status = coll::scatter(comm, is_root ? send.data() : nullptr, recv.data(), count(),
                                    Dtype::kUint32, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      Elements want;
      append(want, rows().of(root, 0) + own_begin(comm), count());
      expect_same(recv, want, "scattered");
      std::fill(recv.begin(), recv.end(), kUnwritten);
      status =
          coll::scatter(comm, send.data(), is_root ? send.data() + own_begin(comm) : recv.data(),
                        count(), Dtype::kUint32, root);
      ASSERT_TRUE(status.ok()) << status.to_string();
      if (!is_root) expect_same(recv, want, "scattered, in place at root");
      if (is_root) expect_same(send, filled(root, all(comm)), "root's buffer");
    }
  });
}

// Around the ring, both ways at once, and between collectives.
TEST_P(AllOps, MessagesToBothNeighbours) {
  using coll::Message;
  run([&](comm::Comm& comm) {
    if (comm.size() == 1) return;
    const int next = (comm.rank() + 1) % comm.size();
    const int before = (comm.rank() + comm.size() - 1) % comm.size();
    for (uint64_t call = 0; call < 3; ++call) {
      const uint64_t back_count = count() / 2 + call;
      const uint32_t* const mine = rows().of(comm.rank(), call);
      Elements there(mine, mine + count()), back(mine, mine + back_count);
      Elements from_before(count(), kUnwritten), from_next(back_count, kUnwritten);
      const auto message = [&](Message::Way way, int peer, Elements& data) {
        return Message{way, peer, data.data(), data.size(), Dtype::kUint32};
      };
      const Message messages[] = {message(Message::Way::kSend, next, there),
                                  message(Message::Way::kSend, before, back),
                                  message(Message::Way::kRecv, before, from_before),
                                  message(Message::Way::kRecv, next, from_next)};
      const Status status = coll::exchange(comm, messages);
      ASSERT_TRUE(status.ok()) << status.to_string();
      const uint32_t* const theirs = rows().of(before, call);
      expect_same(from_before, {theirs, theirs + count()}, "from the rank before");
      const uint32_t* const others = rows().of(next, call);
      expect_same(from_next, {others, others + back_count}, "from the next rank");
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
