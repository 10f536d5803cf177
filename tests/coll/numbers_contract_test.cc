// The numbers contract, line by line: what a collective returns does not depend on shares, links,
// cells or the call's number, and float sums are rank-ordered fp32 sums rounded once. Shares are
// new random values in every call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/sanitizer.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_reduce/steps.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/ranks.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "support/tensors.h"

namespace braid {
namespace {

using golden::Array;
using test::Fill;
using test::mixed;
using test::run_comms;
using test::Tensors;

// Small cells: even short messages are cut over every link.
const test::Options kManyCells = {{"BRAID_LINKS", "shm,staged,rdma"}, {"BRAID_CELL", "256"}};

// Random shares from the call's number alone, so that all ranks force the same: sometimes a link
// gets nothing or all.
plan::Shares random_shares(uint64_t call, size_t num_links) {
  plan::Shares shares(num_links, 0);
  uint32_t left = plan::kWhole;
  for (size_t i = 0; i + 1 < num_links; ++i) {
    const uint64_t draw = mixed(77, static_cast<int>(i), call);
    shares[i] = draw % 7 == 0 ? 0 : static_cast<uint32_t>(draw % (left + 1));
    left -= shares[i];
  }
  shares.back() = left;
  return shares;
}

Dtype dtype_of(uint64_t call) { return kAllDtypes[mixed(1, 0, call) % std::size(kAllDtypes)]; }
RedOp redop_of(uint64_t call) { return kAllRedOps[mixed(2, 0, call) % std::size(kAllRedOps)]; }
uint64_t count_of(uint64_t call) {
  return mixed(3, 0, call) % 16 == 0 ? mixed(4, 0, call) % 4 : mixed(5, 0, call) % 1500;
}

void check_moving(comm::Comm& comm, uint64_t call, Dtype dtype, uint64_t count) {
  const Tensors data{Fill::kRandomBits, dtype, comm.size(), call};
  const auto n = static_cast<uint64_t>(comm.size());
  const size_t element = dtype_bytes(dtype);
  const std::string where = fmt::format("call {} rank {}", call, comm.rank());
  switch (call % 3) {
    case 0: {
      const Array send = data.of(comm.rank(), 0, count);
      Array recv(n * count * element, std::byte{0xA5});
      ASSERT_TRUE(coll::all_gather(comm, send.data(), recv.data(), count, dtype).ok()) << where;
      for (int r = 0; r < comm.size(); ++r)
        ASSERT_EQ(test::first_difference(recv.data() + static_cast<uint64_t>(r) * count * element,
                                         data.of(r, 0, count), dtype),
                  "")
            << where;
      break;
    }
    case 1: {
      const Array send = data.of(comm.rank(), 0, n * count);
      Array recv(n * count * element, std::byte{0xA5});
      ASSERT_TRUE(coll::all_to_all(comm, send.data(), recv.data(), count, dtype).ok()) << where;
      for (int r = 0; r < comm.size(); ++r)
        ASSERT_EQ(test::first_difference(
                      recv.data() + static_cast<uint64_t>(r) * count * element,
                      data.of(r, static_cast<uint64_t>(comm.rank()) * count, count), dtype),
                  "")
            << where;
      break;
    }
    default: {
      const int root = static_cast<int>(call / 3 % n);
      Array buf = data.of(comm.rank(), 0, count);
      ASSERT_TRUE(coll::broadcast(comm, buf.data(), count, dtype, root).ok()) << where;
      ASSERT_EQ(test::first_difference(buf, data.of(root, 0, count), dtype), "") << where;
    }
  }
}

void check_reducing(comm::Comm& comm, uint64_t call, Dtype dtype, RedOp op, uint64_t count) {
  const Fill fill = test::kAllFills[mixed(6, 0, call) % std::size(test::kAllFills)];
  const Tensors data{fill, dtype, comm.size(), call};
  const size_t element = dtype_bytes(dtype);
  const std::string where = fmt::format("call {} rank {} {} {}", call, comm.rank(), redop_name(op),
                                        static_cast<int>(fill));
  if (call % 2 == 0) {
    const Array send = data.of(comm.rank(), 0, count);
    Array recv = send;
    const bool in_place = call % 4 == 0;
    ASSERT_TRUE(
        coll::all_reduce(comm, in_place ? recv.data() : send.data(), recv.data(), count, dtype, op)
            .ok())
        << where;
    ASSERT_EQ(test::first_difference(recv, data.expected(op, 0, count), dtype), "") << where;
  } else {
    const Array send = data.of(comm.rank(), 0, count * static_cast<uint64_t>(comm.size()));
    Array recv(count * element, std::byte{0xA5});
    ASSERT_TRUE(coll::reduce_scatter(comm, send.data(), recv.data(), count, dtype, op).ok())
        << where;
    ASSERT_EQ(
        test::first_difference(
            recv, data.expected(op, static_cast<uint64_t>(comm.rank()) * count, count), dtype),
        "")
        << where;
  }
}

// Lines 1, 2 and 3 together: a thousand calls of any kind, each with other shares.
TEST(NumbersContract, ThousandCallsWithRandomShares) {
  run_comms(3, kManyCells, [](comm::Comm& comm) {
    for (uint64_t call = 0; call < (kIsSanitized ? 250 : 1000); ++call) {
      ASSERT_TRUE(comm.force_shares(random_shares(call, comm.links().size())).ok());
      if (call % 2 == 0)
        check_moving(comm, call / 2, dtype_of(call), count_of(call));
      else
        check_reducing(comm, call / 2, dtype_of(call), redop_of(call), count_of(call));
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// Line 3, first half: the same data gives the same bits in every call, whatever carries it.
TEST(NumbersContract, SameBitsWhateverTheSharesAndCells) {
  const Tensors data{Fill::kHeavyTail, Dtype::kBfloat16, 4, 9};
  const uint64_t count = 9001;
  const Array expected = data.expected(RedOp::kSum, 0, count);
  for (const char* cell : {"0", "64", "448", "8KiB"}) {
    test::Options options = kManyCells;
    options["BRAID_CELL"] = cell;
    run_comms(4, options, [&](comm::Comm& comm) {
      const Array send = data.of(comm.rank(), 0, count);
      for (uint64_t call = 0; call < 20; ++call) {
        ASSERT_TRUE(comm.force_shares(random_shares(call, 3)).ok());
        Array recv(send.size());
        ASSERT_TRUE(
            coll::all_reduce(comm, send.data(), recv.data(), count, Dtype::kBfloat16, RedOp::kSum)
                .ok());
        ASSERT_EQ(test::first_difference(recv, expected, Dtype::kBfloat16), "")
            << "cells of " << cell;
      }
    });
  }
}

// Order probe: 1e8 + 1 - 1e8 + 1 depends on the order of the sum; every permutation over the ranks
// must give exactly the rank-ordered one.
TEST(NumbersContract, SumsInRankOrder) {
  run_comms(4, kManyCells, [](comm::Comm& comm) {
    int order[4] = {0, 1, 2, 3};
    const float values[4] = {1e8F, 1.0F, -1e8F, 1.0F};
    do {
      std::vector<float> buf(700, values[order[comm.rank()]]);
      float expected = 0;
      for (int r = 0; r < 4; ++r)
        expected = r == 0 ? values[order[r]] : expected + values[order[r]];
      ASSERT_TRUE(
          coll::all_reduce(comm, buf.data(), buf.data(), buf.size(), Dtype::kFloat32, RedOp::kSum)
              .ok());
      for (float x : buf) ASSERT_EQ(x, expected);
    } while (std::next_permutation(std::begin(order), std::end(order)));
  });
}

// Every dtype with every operator, counts that divide nothing, zero and one element.
TEST(NumbersContract, EveryDtypeAndOperator) {
  run_comms(4, kManyCells, [](comm::Comm& comm) {
    uint64_t call = 0;
    for (const Dtype dtype : kAllDtypes)
      for (const RedOp op : kAllRedOps)
        for (const uint64_t count : {0, 1, 5, 1021}) {
          check_reducing(comm, call++, dtype, op, count);
          if (testing::Test::HasFatalFailure()) return;
        }
  });
}

// Two comms of the same ranks at once, interleaved: neither sees the other's pieces.
TEST(NumbersContract, TwoCommsAtOnce) {
  auto hub = std::make_shared<test::ThreadHub>(2);
  auto other_hub = std::make_shared<test::ThreadHub>(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const Config config = test::make_config(kManyCells);
      auto a = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, rank), config);
      auto b = comm::Comm::create(std::make_unique<test::ThreadGroup>(other_hub, rank), config);
      ASSERT_TRUE(a.ok() && b.ok());
      for (uint64_t call = 0; call < 100; ++call) {
        check_reducing(call % 3 == 0 ? *b.value() : *a.value(), call, Dtype::kFloat32, RedOp::kSum,
                       500 + call);
        check_moving(call % 2 == 0 ? *b.value() : *a.value(), call, Dtype::kInt64, 300 + call);
      }
    });
  for (std::thread& t : ranks) t.join();
}

}  // namespace
}  // namespace braid
