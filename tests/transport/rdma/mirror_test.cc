// Mirrors over a fabric that reorders, delays, repeats, loses and resets, and over the real one.
#include "transport/rdma/mirror.h"

#include <thread>

#include "transport/rdma/mirror_ends.h"

namespace braid::transport::rdma {
namespace {

using namespace braid::literals;
using sys::FakeFault;

TEST(MirrorNews, UnpackToWhatWasPacked) {
  for (const Told told : {Told::kFull, Told::kFree})
    for (const int sender : {0, 7, 15})
      for (const bool everyone : {false, true})
        for (const int lane : {0, 7})
          for (const uint64_t number : {0UL, 1UL, (1UL << 23) - 1}) {
            const SlotNews n = unpack_news(pack_news({told, sender, everyone, lane, number}));
            EXPECT_EQ(n.told, told);
            EXPECT_EQ(n.sender, sender);
            EXPECT_EQ(n.everyone, everyone);
            EXPECT_EQ(n.lane, lane);
            EXPECT_EQ(n.number, number);
          }
}

TEST(MirrorNews, NumbersGoOnBeyondTheirBits) {
  for (const uint64_t number : {5UL, (1UL << 23) - 1, 1UL << 23, (1UL << 40) + 3})
    for (const int64_t off : {-1000, -1, 0, 1, 1000}) {
      if (off < 0 && number < 1000) continue;
      const uint64_t meant = number + static_cast<uint64_t>(off);
      const uint64_t low = unpack_news(pack_news({Told::kFull, 0, false, 0, meant})).number;
      EXPECT_EQ(nearest_number<kNumberBits>(number, low), meant);
    }
}

// More slots than the rings hold, for everyone and for each alone, ends on odd bytes.
TEST(Mirrors, CarryEveryByte) {
  for (const int size : {2, 3, 5}) {
    sys::FakeFabric fabric;
    MirrorEnds ends = make_ends(fabric, size);
    uint64_t call = 0;
    for (const uint64_t bytes : {1UL, 16UL, 383UL, 384UL, 385UL, 20'001UL})
      for (const bool everyone : {true, false})
        EXPECT_EQ(transfer(ends, ++call, bytes, everyone), "") << size << " ranks, " << bytes;
    EXPECT_EQ(fabric.num_refused(), 0U);
    for (auto& end : ends) EXPECT_TRUE(end->mirrors().status().ok());
  }
}

TEST(Mirrors, RelyOnNoOrderAndNoFirstTime) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sys::FakeFabric fabric({.seed = seed,
                            .reorder_window = 8,
                            .max_delay_polls = 20,
                            .duplicate_percent = 30,
                            .busy_percent = static_cast<uint32_t>(seed % 3 * 30)});
    MirrorEnds ends = make_ends(fabric, 3, 1 + seed % 5);
    for (uint64_t call = 1; call <= 6; ++call)
      EXPECT_EQ(transfer(ends, call, 3000 + 17 * call, call % 2 == 0), "") << "seed " << seed;
    for (auto& end : ends)
      EXPECT_TRUE(end->mirrors().status().ok()) << end->mirrors().status().to_string();
    EXPECT_EQ(fabric.num_refused(), 0U);
  }
}

TEST(Mirrors, CompletionsThatNeverComeStopNothing) {
  sys::FakeFabric fabric;
  MirrorEnds ends = make_ends(fabric, 2);
  for (uint64_t k = 0; k < 100; k += 3) fabric.inject("rank0", k, FakeFault::kMute);
  EXPECT_EQ(transfer(ends, 1, 20'000, true), "");
}

TEST(Mirrors, CountWhatWentOnce) {
  sys::FakeFabric fabric({.reorder_window = 6, .max_delay_polls = 60, .duplicate_percent = 60});
  MirrorEnds ends = make_ends(fabric, 3);
  // Two lanes of 10 slots each.
  EXPECT_EQ(transfer(ends, 1, 20 * 384, true), "");
  for (auto& end : ends) {
    EXPECT_EQ(end->mirrors().traffic().sent_slots, 2 * 20U);
    EXPECT_EQ(end->mirrors().traffic().received_slots, 2 * 20U);
    EXPECT_TRUE(end->mirrors().has_sent_all());
  }
}

// At whichever write the two ends are cut off from each other: both say so or wait no longer than
// their GPUs do, and nothing wrong is shown.
TEST(Mirrors, AFailedWriteIsAnError) {
  for (const FakeFault fault : {FakeFault::kReset, FakeFault::kZombie})
    for (uint64_t k = 0; k < 12; ++k) {
      sys::FakeFabric fabric({.seed = k + 1, .reorder_window = 4, .max_delay_polls = 8});
      MirrorEnds ends = make_ends(fabric, 2, 3, 50'000'000);
      fabric.inject(k % 2 ? "rank0" : "rank1", k, fault);
      for (auto& end : ends) end->begin(1, 30'000, true);
      const auto is_over = [&](const auto& end) { return end->is_done(); };
      const Deadline deadline = Deadline::after_ns(10_s);
      while (!std::all_of(ends.begin(), ends.end(), is_over) && !deadline.passed())
        for (auto& end : ends) end->step();
      EXPECT_FALSE(deadline.passed());
      const bool is_told = ends[0]->fault().code != 0 && ends[1]->fault().code != 0;
      EXPECT_TRUE(is_told) << "fault at write " << k;
    }
}

// A write that vanished with success: the reader's GPU finds it by its deadline.
TEST(Mirrors, AVanishedWriteIsFoundByTheDeadline) {
  sys::FakeFabric fabric;
  MirrorEnds ends = make_ends(fabric, 2, 3, 50'000'000);
  fabric.inject("rank0", 4, FakeFault::kDrop);
  EXPECT_NE(transfer(ends, 1, 30'000, true), "");
  EXPECT_EQ(ends[1]->fault().wait, nvlink::Wait::kSlotFull);
  EXPECT_EQ(ends[1]->fault().peer, 0);
}

TEST(Mirrors, APeerThatIsGoneEndsThem) {
  sys::FakeFabric fabric;
  MirrorEnds ends = make_ends(fabric, 3, 3, 100'000'000);
  ends.pop_back();
  const int64_t start_ns = now_ns();
  EXPECT_NE(transfer(ends, 1, 5000, true), "");
  EXPECT_LT(now_ns() - start_ns, 10_s);
  EXPECT_EQ(ends[0]->mirrors().status().code(), Code::kDriver);
  EXPECT_NE(ends[0]->mirrors().status().message().find("to rank 2"), std::string::npos)
      << ends[0]->mirrors().status().to_string();
  EXPECT_FALSE(ends[0]->mirrors().progress()) << "nothing moves any more";
}

TEST(Mirrors, CloseInBoundedTimeBesideAPeerThatDoesNotPoll) {
  sys::FakeFabric fabric;
  auto mirrors = connect_all_mirrors(fabric, 2);
  auto& head = *reinterpret_cast<pcie::RingHead*>(mirrors[0]->segment(0));
  fabric.cut("rank0", "rank1");
  std::atomic_ref(head.counters[1][0].full.value).store(3, std::memory_order_release);
  const int64_t start_ns = now_ns();
  mirrors[0].reset();
  EXPECT_LT(now_ns() - start_ns, 2_s);
}

/// Every rank's verdict on connecting with options of its own.
std::vector<Status> connect_verdicts(sys::FakeFabric& fabric,
                                     const std::vector<MirrorOptions>& options) {
  std::vector<Status> verdicts(options.size());
  test::run_thread_ranks(static_cast<int>(options.size()), [&](group::Group& group) {
    const auto i = static_cast<size_t>(group.rank());
    verdicts[i] = connect_mirrors(&fabric, group, options[i], Deadline::after_ns(10_s)).status();
  });
  return verdicts;
}

TEST(MirrorConnecting, FailsOnAllRanksOrNone) {
  sys::FakeFabric fabric;
  fabric.forbid("rank1");
  for (const Status& verdict :
       connect_verdicts(fabric, {mirror_options(0), mirror_options(1), mirror_options(2)})) {
    EXPECT_EQ(verdict.code(), Code::kUnavailable) << verdict.to_string();
    EXPECT_NE(verdict.message().find("rank 1"), std::string::npos) << verdict.to_string();
  }
  for (const Status& verdict : connect_verdicts(fabric, {mirror_options(0), mirror_options(2, 4)}))
    EXPECT_EQ(verdict.code(), Code::kInvalidArgument) << verdict.to_string();
  MirrorOptions without_lanes = mirror_options(2);
  without_lanes.num_lanes = 0;
  for (const Status& verdict : connect_verdicts(fabric, {mirror_options(0), without_lanes}))
    EXPECT_EQ(verdict.code(), Code::kInvalidArgument) << verdict.to_string();
}

TEST(MirrorConnecting, ALibraryThatOneRankLacksIsToldToAll) {
  sys::FakeFabric fabric;
  test::run_thread_ranks(2, [&](group::Group& group) {
    const Result<sys::FabricLibrary*> library =
        group.rank() == 0 ? Result<sys::FabricLibrary*>(&fabric)
                          : Result<sys::FabricLibrary*>(unavailable("there is no libfabric"));
    const auto made =
        connect_mirrors(library, group, mirror_options(group.rank()), Deadline::after_ns(10_s));
    EXPECT_EQ(made.status().code(), Code::kUnavailable);
    EXPECT_NE(made.status().message().find("no libfabric"), std::string::npos);
  });
}

// Two real ends in threads of their own, as proxies are.
TEST(Mirrors, CarryEveryByteOverTcp) {
  const auto library = sys::real_fabric();
  if (!library.ok()) GTEST_SKIP() << "skipped: " << library.status().message();
  constexpr int kSize = 3;
  test::run_thread_ranks(kSize, [&](group::Group& group) {
    MirrorOptions options = mirror_options(group.rank());
    options.provider = "tcp";
    options.address = "127.0.0.1";
    auto made = connect_mirrors(library, group, options, Deadline::after_ns(20_s));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    MirrorEnd end(std::move(made).value(), group.rank(), kSize);
    for (uint64_t call = 1; call <= 10; ++call) {
      end.begin(call, 10'000 + call, call % 2 == 0);
      const Deadline deadline = Deadline::after_ns(20_s);
      while (!end.is_done() && !deadline.passed()) {
        end.step();
        std::this_thread::yield();
      }
      EXPECT_EQ(end.wrong(), "");
    }
    // Somebody else may still wait for our frees.
    for (const Deadline until = Deadline::after_ns(20'000'000); !until.passed();) end.step();
    EXPECT_TRUE(group.barrier("end", Deadline::after_ns(20_s)).ok());
  });
}

}  // namespace
}  // namespace braid::transport::rdma
