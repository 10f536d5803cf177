// What every link between GPUs promises in comm/device/links/link.h, run on every one of links.h, on
// fake GPUs: ranks are threads, and kernels are those of support/fake_kernels.h.
//
// Parts land in the ranks' scratch, which peers reach: that of sender s at place_of(s).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/units.h"
#include "coll/device/call.h"
#include "comm/device/links/registry.h"
#include "comm/device/shares/share_table.h"
#include "conformance/links.h"
#include "support/fake_relay.h"
#include "support/gpu_ranks.h"
#include "support/piece_bytes.h"
#include "sys/fabric/fake.h"

namespace braid::test {
namespace {

constexpr uint64_t kBlockBytes = 2_MiB;
constexpr uint64_t kPlaceBytes = kBlockBytes + 4096;  // what lies behind a part must stay as it was
constexpr auto kUntouched = std::byte{0xee};

/// One rank's end of a link.
struct LinkEnd {
  GpuRank& rank;
  comm::DeviceLink& link;
  const comm::Device& device() const { return rank.device; }
  sys::DevicePtr place_of(int sender, int owner) const {
    return device().arena().scratch().at(owner) + static_cast<uint64_t>(sender) * kPlaceBytes;
  }
};

/// Calls `body` on every rank with its end, and the same between all of them.
void run_link_ranks(const DeviceLinkKind& kind, int size, const Options& options,
                    const std::function<void(LinkEnd&)>& body) {
  sys::FakeCuda cuda(size);
  define_team_kernels(cuda);
  define_relay(cuda);
  sys::FakeFabric nics;
  Desk desk;
  Options all_options = gpu_options(kind.options);
  for (const auto& [name, value] : options) all_options[name] = value;
  run_gpu_comms(size, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    comm.state().config = make_config(all_options);
    const auto links = [&](const comm::LinkGround& ground) {
      auto made = comm::make_links(ground);
      if (kind.make) made.push_back(kind.make(ground, desk));
      return made;
    };
    auto made =
        comm::Device::create(comm.state(), cuda, {comm.rank(), small_arena(size), &nics, links});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    comm.state().device = std::move(made).value();
    GpuRank rank{comm, *comm.state().device, cuda, all};
    comm::DeviceLink* const link = rank.device.links().find(kind.found);
    ASSERT_NE(link, nullptr) << "no link is called " << kind.found;
    LinkEnd end{rank, *link};
    body(end);
    all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

/// What a call does with a link: parts of every rank's block to all others, or of one for each.
class Exchange {
 public:
  Exchange(LinkEnd& end, bool is_to_everyone)
      : end_(end), is_to_everyone_(is_to_everyone), send_(end.rank.cuda, sent_bytes()) {}

  /// Moves `bytes` of every block; how many bytes are wrong here then. All ranks do it.
  uint64_t num_wrong(uint64_t bytes, uint64_t call) {
    const int me = end_.rank.rank();
    for (int reader = 0; reader < end_.rank.size(); ++reader)
      if (!is_to_everyone_ || reader == 0)
        std::ranges::copy(sent(me, reader, bytes, call), send_.data() + offset_of(reader));
    for (int sender = 0; sender < end_.rank.size(); ++sender)
      std::memset(here(sender), static_cast<int>(kUntouched), kPlaceBytes);
    end_.rank.all.arrive_and_wait();
    const Status status = end_.link.enqueue(part(bytes), end_.link.stream());
    EXPECT_TRUE(status.ok()) << status.to_string();
    const Status waited = end_.rank.cuda.synchronize(end_.link.stream());
    EXPECT_TRUE(waited.ok()) << waited.to_string();
    end_.rank.all.arrive_and_wait();
    uint64_t wrong = 0;
    for (int sender = 0; sender < end_.rank.size(); ++sender)
      wrong += num_wrong_of(sender, sender == me ? 0 : bytes, call);
    end_.rank.all.arrive_and_wait();
    return wrong;
  }

 private:
  uint64_t sent_bytes() const {
    return kBlockBytes * static_cast<uint64_t>(is_to_everyone_ ? 1 : end_.rank.size());
  }
  uint64_t offset_of(int reader) const {
    return is_to_everyone_ ? 0 : kBlockBytes * static_cast<uint64_t>(reader);
  }
  std::byte* here(int sender) const {
    return sys::pointer_to<std::byte>(end_.place_of(sender, end_.rank.rank()));
  }
  std::vector<std::byte> sent(int sender, int reader, uint64_t bytes, uint64_t call) const {
    const auto to = static_cast<uint64_t>(is_to_everyone_ ? 63 : reader);
    return piece_bytes_of(call << 12 | static_cast<uint64_t>(sender) << 6 | to, bytes);
  }
  /// Bytes of its part that differ, and bytes behind it that were written.
  uint64_t num_wrong_of(int sender, uint64_t bytes, uint64_t call) const {
    std::vector<std::byte> right = sent(sender, end_.rank.rank(), bytes, call);
    right.resize(kPlaceBytes, kUntouched);
    if (std::memcmp(here(sender), right.data(), kPlaceBytes) == 0) return 0;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < kPlaceBytes; ++i) wrong += here(sender)[i] != right[i];
    return wrong;
  }

  comm::LinkPart part(uint64_t bytes) const {
    std::array<sys::DevicePtr, nvlink::kMostRanks> sources{}, places{};
    for (int r = 0; r < end_.rank.size(); ++r) {
      sources[static_cast<size_t>(r)] = send_.get() + offset_of(r);
      places[static_cast<size_t>(r)] = end_.place_of(r, end_.rank.rank());
    }
    if (end_.link.writes_peer_memory()) return written_part(sources, bytes);
    return is_to_everyone_
               ? coll::device::all_to_everyone(end_.device(), send_.get(), places, bytes)
               : coll::device::each_to_each(end_.device(), sources, places, bytes);
  }
  comm::LinkPart written_part(const std::array<sys::DevicePtr, nvlink::kMostRanks>& sources,
                              uint64_t bytes) const {
    comm::LinkPart part;
    const int me = end_.rank.rank();
    for (int peer = 0; peer < end_.rank.size(); ++peer)
      if (peer != me)
        part.add({me, peer, sys::pointer_to<std::byte>(sources[static_cast<size_t>(peer)]),
                  sys::pointer_to<std::byte>(end_.place_of(me, peer)), bytes});
    part.agreed_flows = part.num_flows;
    return part;
  }

  LinkEnd& end_;
  const bool is_to_everyone_;
  GuardedMemory send_;
};

/// What the link would carry of a block, if `share` of it were its.
uint64_t part_bytes_of(LinkEnd& end, plan::Op op, double share) {
  end.link.shares().set_tuned(op, share);
  return end.link.part({op, kBlockBytes, kBlockBytes, 1, 0});
}

class DeviceLinkTest : public ::testing::TestWithParam<std::tuple<DeviceLinkKind, int>> {
 protected:
  static const DeviceLinkKind& kind() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }
  static void run(const std::function<void(LinkEnd&)>& body, const Options& options = {}) {
    run_link_ranks(kind(), size(), options, body);
  }
};

TEST_P(DeviceLinkTest, EndsAgreeOnWhatItIs) {
  run([](LinkEnd& end) {
    const comm::DeviceLink& link = end.link;
    const std::string mine = fmt::format("{} {} {} {}", link.facts().name, link.index(),
                                         link.writes_peer_memory(), link.shape());
    auto all = end.rank.comm.state().group->exchange("what it is", mine, test_deadline());
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    for (const std::string& theirs : *all) EXPECT_EQ(theirs, mine);
    EXPECT_TRUE(link.state().is_on) << link.state().how;
    EXPECT_FALSE(link.state().how.empty());
    EXPECT_TRUE(link.status().ok());
    EXPECT_EQ(&end.device().links()[link.index()], &link);
    EXPECT_EQ(link.writes_peer_memory(), link.index() == 0)
        << "who reaches peers' memory is the base link";
  });
}

TEST_P(DeviceLinkTest, PartsStayWithinWhatIsAskedFor) {
  run([](LinkEnd& end) {
    for (const plan::Op op : plan::kAllOps)
      for (const double share : {0.0, 0.01, 0.33, 1.0})
        for (const uint64_t most : {uint64_t{0}, 100_KiB, 1_MiB, kBlockBytes}) {
          end.link.shares().set_tuned(op, share);
          const comm::PartRequest request{op, kBlockBytes, most, 1, kBlockBytes - most};
          const uint64_t part = end.link.part(request);
          EXPECT_LE(part, most) << plan::op_name(op) << " with a share of " << share;
          EXPECT_EQ(part, end.link.part(request)) << "all ranks find the same";
          if (end.link.index() == 0) continue;
          EXPECT_EQ(part % comm::kCutUnit, 0U);
          const bool may_carry = share > 0 && end.link.can_carry(op);
          EXPECT_TRUE(may_carry || part == 0) << plan::op_name(op);
        }
  });
}

// What one rank has for all, and what it has for each; from little to all of a block.
TEST_P(DeviceLinkTest, EveryByteIsWhereItBelongs) {
  run([](LinkEnd& end) {
    uint64_t call = 0;
    for (const plan::Op op : {plan::Op::kAllGather, plan::Op::kAllToAll}) {
      if (!end.link.can_carry(op)) continue;
      Exchange exchange(end, op == plan::Op::kAllGather);
      for (const double share : {0.001, 0.07, 0.5, 1.0})
        EXPECT_EQ(exchange.num_wrong(part_bytes_of(end, op, share), ++call), 0U)
            << plan::op_name(op) << " with a share of " << share;
    }
    EXPECT_TRUE(end.link.status().ok());
  });
}

TEST_P(DeviceLinkTest, PartsComeInTheOrderOfTheirSending) {
  run([](LinkEnd& end) {
    Exchange exchange(end, true);
    for (uint64_t call = 0; call < 12; ++call) {
      const double share = call % 3 == 0 ? 0.3 : 0.07;
      EXPECT_EQ(exchange.num_wrong(part_bytes_of(end, plan::Op::kAllGather, share), call), 0U)
          << "part " << call;
    }
  });
}

TEST_P(DeviceLinkTest, AnEmptyPartIsNothing) {
  run([](LinkEnd& end) {
    const Status status = end.link.enqueue({}, end.link.stream());
    EXPECT_TRUE(status.ok()) << status.to_string();
    Exchange exchange(end, true);
    EXPECT_EQ(exchange.num_wrong(0, 1), 0U);
    EXPECT_EQ(exchange.num_wrong(part_bytes_of(end, plan::Op::kAllGather, 0.1), 2), 0U);
  });
}

// The last rank enqueues nothing. Who writes into its memory does not notice; the others' waits end.
TEST_P(DeviceLinkTest, ARankThatNeverComesEndsTheWaits) {
  if (size() > 2) GTEST_SKIP() << "skipped: each costs its deadline, and two ranks say it";
  run(
      [](LinkEnd& end) {
        const uint64_t bytes = part_bytes_of(end, plan::Op::kAllGather, 0.5);
        if (end.rank.rank() == end.rank.size() - 1) return;
        const GuardedMemory send(end.rank.cuda, kBlockBytes);
        comm::LinkPart part;
        for (int peer = 0; peer < end.rank.size(); ++peer)
          if (peer != end.rank.rank() && end.link.writes_peer_memory())
            part.add({end.rank.rank(), peer, send.data(),
                      sys::pointer_to<std::byte>(end.place_of(end.rank.rank(), peer)), bytes});
        if (!end.link.writes_peer_memory()) {
          std::array<sys::DevicePtr, nvlink::kMostRanks> places{};
          for (int r = 0; r < end.rank.size(); ++r)
            places[static_cast<size_t>(r)] = end.place_of(r, end.rank.rank());
          part = coll::device::all_to_everyone(end.device(), send.get(), places, bytes);
        }
        const int64_t begin_ns = now_ns();
        const Status status = end.link.enqueue(part, end.link.stream());
        EXPECT_LT(now_ns() - begin_ns, 20'000'000'000) << "it waited far beyond its deadline";
        const bool has_failed = !status.ok() || !end.device().faults().look().ok();
        EXPECT_EQ(has_failed, !end.link.writes_peer_memory()) << status.to_string();
      },
      {{"BRAID_TIMEOUT", "3s"}});
}

TEST_P(DeviceLinkTest, StopsTwice) {
  run([](LinkEnd& end) {
    Exchange exchange(end, true);
    EXPECT_EQ(exchange.num_wrong(part_bytes_of(end, plan::Op::kAllGather, 0.1), 1), 0U);
    end.link.stop();
    end.link.stop();
    EXPECT_FALSE(end.link.state().how.empty());
  });
}

INSTANTIATE_TEST_SUITE_P(Links, DeviceLinkTest,
                         ::testing::Combine(::testing::ValuesIn(links_between_gpus()),
                                            ::testing::Values(2, 3)),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", std::get<0>(instance.param).name,
                                              std::get<1>(instance.param));
                         });

/// Loses a byte in every so many.
class LeakyLink : public DeskLink {
 public:
  using DeskLink::DeskLink;

 protected:
  bool take(const comm::Flow& flow) override {
    std::vector<std::byte> before(flow.destination, flow.destination + flow.bytes);
    if (!DeskLink::take(flow)) return false;
    for (uint64_t i = 9; i < flow.bytes; i += 1000) flow.destination[i] = before[i];
    return true;
  }
};

// The suite itself: it must find a link that is wrong.
TEST(DeviceLinkSuite, FindsALinkThatLosesBytes) {
  const DeviceLinkKind leaky{"leaky", "desk", {}, make_on_desk<LeakyLink>};
  run_link_ranks(leaky, 2, {}, [](LinkEnd& end) {
    Exchange exchange(end, true);
    const uint64_t bytes = part_bytes_of(end, plan::Op::kAllGather, 0.07);
    EXPECT_NEAR(static_cast<double>(exchange.num_wrong(bytes, 1)),
                static_cast<double>(bytes) / 1000, static_cast<double>(bytes) / 1000 / 20);
  });
}

}  // namespace
}  // namespace braid::test
