#include "bindings/nccl/calls.h"

#include <gtest/gtest.h>

#include <vector>

namespace braid::nccl {
namespace {

Settings settings(const std::map<std::string, std::string>& pairs) {
  return settings_from(Config::from_pairs(pairs).value()).value();
}

Call all_reduce(size_t count) {
  Call call;
  call.op = Op::kAllReduce;
  call.count = count;
  call.dtype = 7;
  return call;
}

TEST(Wanted, CollectivesWithGoodNumbers) {
  const Settings all;
  EXPECT_TRUE(is_wanted(all, all_reduce(1), 2));
  EXPECT_TRUE(is_wanted(all, all_reduce(1), 16));
  EXPECT_FALSE(is_wanted(all, all_reduce(1), 1));
  EXPECT_FALSE(is_wanted(all, all_reduce(1), 17));
  EXPECT_FALSE(is_wanted(all, all_reduce(0), 2)) << "NCCL answers it without a launch";
  EXPECT_FALSE(is_wanted(all, all_reduce(SIZE_MAX), 2));
}

TEST(Wanted, WhatNcclRefusesOrOnlyItKnowsIsHandedOn) {
  const Settings all;
  for (const int dtype : {-1, 12, 64}) {
    Call call = all_reduce(8);
    call.dtype = dtype;
    EXPECT_FALSE(is_wanted(all, call, 2)) << "type " << dtype;
  }
  for (const int redop : {-1, 5, 1 << 20}) {
    Call call = all_reduce(8);
    call.redop = redop;
    EXPECT_FALSE(is_wanted(all, call, 2)) << "reduction " << redop;
  }
  for (const int root : {-1, 2}) {
    Call call = all_reduce(8);
    call.op = Op::kBroadcast;
    call.root = root;
    EXPECT_FALSE(is_wanted(all, call, 2)) << "root " << root;
  }
  Call send = all_reduce(8);
  send.op = Op::kSend;
  EXPECT_FALSE(is_wanted(all, send, 2));
}

TEST(Wanted, AMessageIsAllRanksBlocks) {
  Call call = all_reduce(1000);
  EXPECT_EQ(bytes_of(call, 4), 4000U);
  call.op = Op::kAllGather;
  EXPECT_EQ(bytes_of(call, 4), 16000U);
  call.dtype = 8;
  EXPECT_EQ(bytes_of(call, 4), 32000U);
}

TEST(Wanted, AddressesDecideNothing) {
  Call call = all_reduce(8);
  for (const uintptr_t address : {uintptr_t{0}, uintptr_t{1}, uintptr_t{4096}}) {
    call.send = reinterpret_cast<void*>(address);
    call.recv = reinterpret_cast<void*>(address + 3);
    EXPECT_TRUE(is_wanted(Settings(), call, 2));
  }
}

TEST(Wanted, SizesCountAllBlocks) {
  const Settings some = settings({{"BRAID_NCCL_LEAST", "1KiB"}, {"BRAID_NCCL_MOST", "4KiB"}});
  EXPECT_FALSE(is_wanted(some, all_reduce(255), 4));
  EXPECT_TRUE(is_wanted(some, all_reduce(256), 4));
  EXPECT_TRUE(is_wanted(some, all_reduce(1024), 4));
  EXPECT_FALSE(is_wanted(some, all_reduce(1025), 4));
  for (const Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll}) {
    Call call = all_reduce(64);
    call.op = op;
    EXPECT_TRUE(is_wanted(some, call, 4)) << op_name(op);
    call.count = 63;
    EXPECT_FALSE(is_wanted(some, call, 4)) << op_name(op);
  }
}

// What NCCL is faster at is NCCL's, unless it was asked for by name.
TEST(Wanted, WhatNcclIsFasterAtIsNot) {
  struct Case {
    Op op;
    int few_ranks;         // among whom braid is faster at every size
    int num_ranks;         // more
    uint64_t most_floats;  // of a rank's block, or of the buffer, among them
  };
  const Case cases[] = {{Op::kBroadcast, 2, 8, 4 << 20},
                        {Op::kAllReduce, 2, 4, 64 << 20},
                        {Op::kAllReduce, 2, 8, 8 << 20},
                        {Op::kAllToAll, 4, 8, (16 << 20) / 8}};
  const Settings named = settings({{"BRAID_NCCL_OPS", "all_reduce,all_to_all,broadcast"}});
  const Settings untuned = settings({{"BRAID_TUNE", "off"}, {"BRAID_NCCL_OPS", "all"}});
  for (const Case& one : cases) {
    Call call = all_reduce(one.most_floats);
    call.op = one.op;
    const int n = one.num_ranks;
    EXPECT_TRUE(is_wanted(untuned, call, n)) << op_name(one.op);
    ++call.count;
    EXPECT_FALSE(is_wanted(untuned, call, n)) << op_name(one.op);
    EXPECT_TRUE(is_wanted(settings({}), call, n)) << "a race tells: " << op_name(one.op);
    EXPECT_TRUE(is_wanted(named, call, n)) << op_name(one.op);
    call.count = 1 << 28;
    EXPECT_TRUE(is_wanted(untuned, call, one.few_ranks)) << op_name(one.op);
    EXPECT_FALSE(is_wanted(untuned, call, one.few_ranks + 1)) << op_name(one.op);
  }
  for (const Op op : {Op::kAllGather, Op::kReduceScatter}) {
    Call call = all_reduce(1 << 28);
    call.op = op;
    EXPECT_TRUE(is_wanted(settings({}), call, 8)) << op_name(op);
  }
}

TEST(Wanted, OpsThatWereNamed) {
  const Settings some = settings({{"BRAID_NCCL_OPS", "all_gather,broadcast"}});
  Call call = all_reduce(64);
  EXPECT_FALSE(is_wanted(some, call, 2));
  call.op = Op::kAllGather;
  EXPECT_TRUE(is_wanted(some, call, 2));
  call.op = Op::kBroadcast;
  EXPECT_TRUE(is_wanted(some, call, 2));
  EXPECT_FALSE(is_wanted(settings({{"BRAID_NCCL_OPS", "none"}}), call, 2));
  const auto wrong = settings_from(Config::from_pairs({{"BRAID_NCCL_OPS", "send"}}).value());
  EXPECT_EQ(wrong.status().code(), Code::kInvalidArgument);
}

class Exchange : public testing::Test {
 protected:
  Exchange() {
    for (int r = 0; r < 3; ++r) {
      Call send;
      send.op = Op::kSend;
      send.count = 5;
      send.dtype = 7;
      send.root = r;
      send.send = memory_ + 20 * r;
      Call recv = send;
      recv.op = Op::kRecv;
      recv.send = nullptr;
      recv.recv = memory_ + 100 + 20 * r;
      calls_.push_back(recv);
      calls_.insert(calls_.begin(), send);
    }
  }
  char memory_[200] = {};
  std::vector<Call> calls_;
};

TEST_F(Exchange, EqualBlocksOneBehindTheOther) {
  const auto whole = as_all_to_all(calls_, 3);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->op, Op::kAllToAll);
  EXPECT_EQ(whole->send, memory_);
  EXPECT_EQ(whole->recv, memory_ + 100);
  EXPECT_EQ(whole->count, 5U);
}

TEST_F(Exchange, AnythingElseIsNone) {
  EXPECT_FALSE(as_all_to_all(calls_, 2).has_value());
  EXPECT_FALSE(as_all_to_all(calls_, 4).has_value());
  const std::vector<Call> good = calls_;
  const auto spoilt = [&](auto&& spoil) {
    calls_ = good;
    spoil(calls_[1]);
    return !as_all_to_all(calls_, 3).has_value();
  };
  EXPECT_TRUE(spoilt([](Call& c) { c.count = 6; }));
  EXPECT_TRUE(spoilt([](Call& c) { c.dtype = 2; }));
  EXPECT_TRUE(spoilt([](Call& c) { c.root = 0; })) << "two to one rank";
  EXPECT_TRUE(spoilt([](Call& c) { c.root = 9; }));
  EXPECT_TRUE(spoilt([this](Call& c) { c.send = memory_ + 1; })) << "a gap";
  EXPECT_TRUE(spoilt([this](Call& c) { c.stream = memory_; }));
}

}  // namespace
}  // namespace braid::nccl
