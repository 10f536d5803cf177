// What a new link beside NVLink takes: an object of its own and a place in the list. The one here
// copies from memory to memory, as threads of one process can; no other file knows of it, and calls
// cut their blocks for it, agree on it, and tell of it.
#include <gtest/gtest.h>

#include <vector>

#include "base/units.h"
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "coll/device/explain.h"
#include "comm/device/links/registry.h"
#include "support/desk_link.h"
#include "support/fake_relay.h"
#include "support/gpu_ranks.h"
#include "support/tensors.h"

namespace braid::coll::device {
namespace {

using test::Desk;
using test::DeskLink;
using test::GpuRank;
using test::GuardedMemory;

constexpr uint64_t kDeskBlock = 4_MiB;

std::byte desk_byte_of(int rank, uint64_t at) {
  return static_cast<std::byte>(test::mixed(5, static_cast<uint64_t>(rank), at) & 0xff);
}

/// Ranks whose Devices have that link beside the others, with a quarter of every message.
void run_with_desk(int size, sys::FakeCuda& cuda, const std::function<void(GpuRank&)>& body) {
  test::define_team_kernels(cuda);
  test::define_relay(cuda);
  Desk desk;
  test::run_gpu_comms(size, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    comm.state().config = test::make_config(test::gpu_options({}));
    const auto links = [&](const comm::LinkGround& ground) {
      auto made = comm::make_links(ground);
      made.push_back(std::make_unique<DeskLink>(ground, desk));
      return made;
    };
    auto made = comm::Device::create(comm.state(), cuda,
                                     {comm.rank(), test::small_arena(size), nullptr, links});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    comm.state().device = std::move(made).value();
    GpuRank rank{comm, *comm.state().device, cuda, all};
    for (const plan::Op op : plan::kAllOps) {
      rank.device.links().main().shares().set_tuned(op, 0.125);
      rank.device.links().find("desk")->shares().set_tuned(op, 0.25);
    }
    body(rank);
    all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

const DeskLink& desk_of(const comm::Device& device) {
  return dynamic_cast<const DeskLink&>(*device.links().find("desk"));
}

uint64_t desk_num_wrong(const GuardedMemory& memory, uint64_t begin, int rank) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kDeskBlock; ++i)
    wrong += memory.data()[begin + i] != desk_byte_of(rank, i);
  return wrong;
}

TEST(NewLink, CarriesItsPartOfEveryCallThatItCan) {
  for (const int size : {2, 3}) {
    sys::FakeCuda cuda(size);
    run_with_desk(size, cuda, [&](GpuRank& rank) {
      const uint64_t all = kDeskBlock * static_cast<uint64_t>(size);
      const GuardedMemory send(cuda, kDeskBlock), recv(cuda, all);
      for (uint64_t i = 0; i < kDeskBlock; ++i) send.data()[i] = desk_byte_of(rank.rank(), i);
      const Status gathered = on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
        return all_gather(device, send.get(), recv.get(), kDeskBlock, Dtype::kUint8, {});
      });
      EXPECT_TRUE(gathered.ok()) << gathered.to_string();
      EXPECT_EQ(desk_of(rank.device).num_parts(), 1);
      rank.all.arrive_and_wait();
      for (int r = 0; r < size; ++r)
        EXPECT_EQ(desk_num_wrong(recv, static_cast<uint64_t>(r) * kDeskBlock, r), 0U)
            << "of rank " << r;
      rank.all.arrive_and_wait();
      const Status cast = on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
        return broadcast(device, send.get(), send.get(), kDeskBlock, Dtype::kUint8, size - 1, {});
      });
      EXPECT_TRUE(cast.ok()) << cast.to_string();
      EXPECT_EQ(desk_of(rank.device).num_parts(), 2);
      rank.all.arrive_and_wait();
      EXPECT_EQ(desk_num_wrong(send, 0, size - 1), 0U);
      rank.all.arrive_and_wait();
    });
  }
}

TEST(NewLink, IsToldOf) {
  sys::FakeCuda cuda(2);
  run_with_desk(2, cuda, [&](GpuRank& rank) {
    const auto told = explain(rank.comm, plan::Op::kAllGather, 2 * kDeskBlock);
    ASSERT_TRUE(told.ok()) << told.status().to_string();
    EXPECT_DOUBLE_EQ(told.value().links.back().share, 0.25);
    EXPECT_NE(to_words(told.value()).find("desk    25.0 %, from hand to hand"), std::string::npos)
        << to_words(told.value());
    EXPECT_NE(rank.comm.health_json().find(R"("desk":{"on":true,"how":"from hand to hand")"),
              std::string::npos)
        << rank.comm.health_json();
    const std::string links = rank.comm.links_json(true);
    EXPECT_TRUE(links.starts_with(R"([{"name":"nvlink","kind":"nvlink",)")) << links;
    EXPECT_NE(links.find(R"("name":"desk")"), std::string::npos) << links;
    EXPECT_TRUE(links.ends_with(R"("state":"up","how":"from hand to hand"}])")) << links;
    EXPECT_TRUE(rank.comm.links_json(false).starts_with(R"([{"name":"shm","kind":"shm",)"));
  });
}

// Another share on one rank is another cut of the block, which the call's signature tells.
TEST(NewLink, ItsShareIsPartOfTheCall) {
  sys::FakeCuda cuda(2);
  run_with_desk(2, cuda, [&](GpuRank& rank) {
    const auto signature = [&] {
      const CollectiveCall call{plan::Op::kAllGather, 0, 0, kDeskBlock};
      return signature_of(call, {}, cut_of(rank.device, call.op, call.bytes));
    };
    const uint64_t before = signature();
    EXPECT_EQ(signature(), before);
    rank.device.links().find("desk")->shares().set_tuned(plan::Op::kAllGather, 0.375);
    EXPECT_NE(signature(), before);
  });
}

}  // namespace
}  // namespace braid::coll::device
