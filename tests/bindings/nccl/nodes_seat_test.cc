// Seats over two nodes of two, from the mark in an id to the sums: threads as ranks, real rolls,
// groups and comms, fake GPUs, and a fake library behind the rails that is late by a seed and fails
// at any call.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitizer.h"
#include "base/units.h"
#include "bindings/nccl/choice.h"
#include "bindings/nccl/core/nodes/roll_host.h"
#include "bindings/nccl/core/nodes/rolls.h"
#include "bindings/nccl/core/seat.h"
#include "coll/device/all_kernels.h"
#include "coll/device/fake_sums.h"
#include "coll/reduce/reduce.h"
#include "support/fake_direct.h"
#include "support/fake_rail.h"
#include "support/gpu_ranks.h"
#include "support/tensors.h"

namespace braid::nccl::seats_over_nodes {
namespace {

constexpr int kNodes = 2, kPerNode = 2, kRanks = kNodes * kPerNode;

/// The real library, as far as rails go. A rail is known by its id.
class RailLibrary {
 public:
  explicit RailLibrary(uint64_t seed) : seed_(seed) {
    table_.context = this;
    table_.version = 22809;
    table_.make_id = [](void* context, char* id) {
      auto& library = *static_cast<RailLibrary*>(context);
      const std::lock_guard lock(library.mutex_);
      if (library.fails_to_make_ids_) return 3;
      std::snprintf(id, kIdBytes, "rail %d", library.num_ids_++);
      return 0;
    };
    table_.make = [](void* context, const char* id, int num_ranks, int rank, void** comm) {
      auto& library = *static_cast<RailLibrary*>(context);
      std::unique_lock lock(library.mutex_);
      ++library.num_making_;
      library.changed_.wait(lock, [&] { return !library.is_held_; });
      if (rank == library.fails_to_make_at_) return 3;
      auto& hub = library.hubs_[id];
      if (!hub) hub = std::make_unique<test::RailHub>(num_ranks, library.seed_, 5000);
      auto rail = std::make_unique<test::FakeRail>(*hub, rank);
      if (rank == 0) rail->fail_at(library.fails_at_);
      *comm = rail.get();
      library.rails_.push_back(std::move(rail));
      return 0;
    };
    table_.exchange = [](void*, void* comm, const braid_nccl_passage* p, void* stream) {
      const auto at = [](const void* memory) { return address_of(memory); };
      return code_of(rail_of(comm).exchange(
          {at(p->send), p->send_bytes, p->to, at(p->recv), p->recv_bytes, p->from}, {stream}));
    };
    table_.all_gather = [](void*, void* comm, const void* send, void* recv, uint64_t bytes,
                           void* stream) {
      return code_of(rail_of(comm).all_gather(address_of(send), address_of(recv), bytes, {stream}));
    };
    table_.error = [](void*, void* comm) { return code_of(rail_of(comm).error()); };
    table_.abort = [](void* context, void* comm) {
      rail_of(comm).abort();
      ++static_cast<RailLibrary*>(context)->num_aborted_;
      return 0;
    };
    table_.destroy = [](void* context, void*) {
      ++static_cast<RailLibrary*>(context)->num_destroyed_;
      return 0;
    };
  }
  const braid_nccl_rails* table() const { return &table_; }
  void fail_at(uint64_t call) { fails_at_ = call; }
  void fail_to_make(int rank) { fails_to_make_at_ = rank; }
  void fail_to_make_ids() { fails_to_make_ids_ = true; }
  /// Rails are not made before they are let go on.
  void hold() { is_held_ = true; }
  void let_go() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  int num_making() const {
    const std::lock_guard lock(mutex_);
    return num_making_;
  }
  int num_aborted() const { return num_aborted_; }
  int num_destroyed() const { return num_destroyed_; }

 private:
  static sys::DevicePtr address_of(const void* memory) {
    return reinterpret_cast<sys::DevicePtr>(memory);
  }
  static test::FakeRail& rail_of(void* comm) { return *static_cast<test::FakeRail*>(comm); }
  static int code_of(const Status& status) { return status.ok() ? 0 : 6; }

  const uint64_t seed_;
  braid_nccl_rails table_{};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::unique_ptr<test::RailHub>> hubs_;
  std::vector<std::unique_ptr<test::FakeRail>> rails_;
  int num_ids_ = 0, fails_to_make_at_ = -1;
  int num_making_ = 0;
  std::atomic<int> num_aborted_{0}, num_destroyed_{0};
  bool fails_to_make_ids_ = false, is_held_ = false;
  uint64_t fails_at_ = UINT64_MAX - 1'000'000;
};

/// GPUs whose work may have no end, for what asks events.
class EndlessCuda final : public sys::FakeCuda {
 public:
  using FakeCuda::FakeCuda;
  void go_on_until(std::function<bool()> has_ended) { has_ended_ = std::move(has_ended); }
  Result<bool> is_done(sys::Event event) override {
    return has_ended_ && !has_ended_() ? Result<bool>(false) : FakeCuda::is_done(event);
  }
  Result<bool> is_done(sys::Stream stream) override { return FakeCuda::is_done(stream); }

 private:
  std::function<bool()> has_ended_;
};

class SeatsOverNodes : public testing::Test {
 protected:
  SeatsOverNodes() {
    const std::map<std::string, std::string> options = {
        {"BRAID_NCCL_NODES", "on"},     {"BRAID_GPU_PACKETS", "0"}, {"BRAID_GPU_LINES", "0"},
        {"BRAID_GPU_SCRATCH", "16MiB"}, {"BRAID_TUNE", "off"},      {"BRAID_NCCL_MEET", "10s"},
        {"BRAID_NCCL_TIMEOUT", "20s"}};
    for (const auto& [name, value] : options) set(name, value);
    for (int node = 0; node < kNodes; ++node) {
      machines_.push_back(std::make_unique<EndlessCuda>(kPerNode));
      test::define_all_kernels(*machines_.back());
      test::define_team_kernels(*machines_.back());
      test::define_sums(*machines_.back());
      test::define_direct(*machines_.back(), [](const coll::DirectArgs&) {});
    }
  }
  ~SeatsOverNodes() override {
    for (const std::string& name : names_) unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  }

  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
    names_.push_back(name);
  }

  /// As NCCL makes it, of a bootstrap on loopback.
  static std::array<std::byte, kIdBytes> fresh_id() {
    std::array<std::byte, kIdBytes> id{};
    sockaddr_in at{};
    at.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    std::memcpy(id.data() + 8, &at, sizeof at);
    std::random_device device;
    for (size_t i = 0; i < 8; ++i) id[i] = static_cast<std::byte>(device());
    return id;
  }
  static std::string marked_key() {
    std::array<std::byte, kIdBytes> id = fresh_id();
    EXPECT_TRUE(mark_id(id, "").ok());
    return {reinterpret_cast<const char*>(id.data()), id.size()};
  }

  /// By an id whose roll `host` serves, until the caller takes it away.
  void sign_at(std::unique_ptr<RollHost>& host) {
    std::array<std::byte, kIdBytes> id = fresh_id();
    const auto hosts = sys::resolve("127.0.0.1", 0);
    auto served = RollHost::serve(hosts->front());
    ASSERT_TRUE(served.ok()) << served.status().to_string();
    const auto mark = (*served)->add_id("");
    ASSERT_TRUE(mark.ok());
    write_mark(id, mark.value());
    host = std::move(served).value();
    sign_by({reinterpret_cast<const char*>(id.data()), id.size()});
  }
  void sign(int num_signing = kRanks) { sign_by(marked_key(), num_signing); }
  /// Signed one after the other: the environment is one for all threads.
  void sign_by(const std::string& key, int num_signing = kRanks) {
    for (int rank = 0; rank < num_signing; ++rank) {
      set("BRAID_HOST_ID", "seats-node-" + std::to_string(rank / kPerNode));
      auto seat = Seat::sign(key, 0, machine(rank));
      ASSERT_TRUE(seat.ok()) << seat.status().to_string();
      seats_.push_back(std::move(seat).value());
    }
  }

  sys::FakeCuda& machine(int rank) { return *machines_[static_cast<size_t>(rank / kPerNode)]; }
  Status open(int rank, const RailLibrary& library, int op = BRAID_NCCL_ALL_GATHER) {
    return seats_[static_cast<size_t>(rank)]->open(
        {rank, kRanks, rank % kPerNode, op, library.table()});
  }
  Status race(int rank, int op, braid_nccl_choice& choice, bool is_large = false) {
    return seats_[static_cast<size_t>(rank)]->race(op, {is_large}, nullptr, choice);
  }

  void on_ranks(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(seats_.size()); ++rank)
      threads.emplace_back([&, rank] {
        const auto scope = sys::CurrentDevice::use(machine(rank), rank % kPerNode);
        body(rank);
      });
    for (std::thread& thread : threads) thread.join();
  }
  void close(bool is_in_peace) {
    on_ranks([&](int rank) { seats_[static_cast<size_t>(rank)]->close(is_in_peace); });
    seats_.clear();
    nvlink::await_frees();
    for (const auto& machine : machines_) EXPECT_EQ(machine->alive(), sys::FakeCudaCounts{});
  }

  static float value(int rank, uint64_t call, uint64_t i) {
    const uint64_t word = test::mixed(static_cast<uint64_t>(rank) + 1, call, i);
    return static_cast<float>(static_cast<int64_t>(word % 20'001) - 10'000) * 0.37F;
  }

  /// One of either call, checked to the bit. Not ok: what the seat answered.
  Status call(int rank, uint64_t number, uint64_t count, bool gathers) {
    const uint64_t block = 4 * count;
    test::GuardedMemory whole(machine(rank), block * kRanks), part(machine(rank), block);
    braid_nccl_call asked{};
    asked.op = gathers ? BRAID_NCCL_ALL_GATHER : BRAID_NCCL_REDUCE_SCATTER;
    asked.dtype = static_cast<int>(Dtype::kFloat32);
    asked.redop = static_cast<int>(number % 2 == 0 ? RedOp::kSum : RedOp::kAvg);
    asked.count = count;
    asked.send = gathers ? part.data() : whole.data();
    asked.recv = gathers ? whole.data() : part.data();
    auto* const all = reinterpret_cast<float*>(whole.data());
    auto* const own = reinterpret_cast<float*>(part.data());
    for (uint64_t i = 0; i < count; ++i) own[i] = value(rank, number, i);
    for (uint64_t i = 0; i < count * kRanks; ++i) all[i] = value(rank, number, i);
    BRAID_RETURN_IF_ERROR(seats_[static_cast<size_t>(rank)]->run(asked));
    uint64_t num_wrong = 0;
    if (gathers) {
      for (int source = 0; source < kRanks; ++source)
        for (uint64_t i = 0; i < count; ++i)
          num_wrong +=
              all[static_cast<uint64_t>(source) * count + i] == value(source, number, i) ? 0 : 1;
    } else {
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = static_cast<uint64_t>(rank) * count + i;
        float partial[kNodes];
        for (int node = 0; node < kNodes; ++node)
          partial[node] = value(2 * node, number, at) + value(2 * node + 1, number, at);
        float sum = partial[0] + partial[1];
        if (number % 2 == 1) sum = sum / kRanks;
        num_wrong += own[i] == sum ? 0 : 1;
      }
    }
    EXPECT_EQ(num_wrong, 0U) << "call " << number << " on rank " << rank;
    EXPECT_TRUE(whole.is_guarded() && part.is_guarded());
    return {};
  }

  std::vector<std::unique_ptr<EndlessCuda>> machines_;
  std::vector<std::unique_ptr<Seat>> seats_;
  std::vector<std::string> names_;
};

TEST_F(SeatsOverNodes, FromTheMarkToTheSums) {
  RailLibrary library(11);
  sign();
  on_ranks([&](int rank) {
    const Status opened = open(rank, library);
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    EXPECT_TRUE(seats_[static_cast<size_t>(rank)]->is_over_nodes());
    for (const int op : {BRAID_NCCL_ALL_GATHER, BRAID_NCCL_REDUCE_SCATTER}) {
      braid_nccl_choice choice{};
      const Status raced = race(rank, op, choice);
      ASSERT_TRUE(raced.ok()) << raced.to_string();
      EXPECT_TRUE(is_braids(choice, 1000));
    }
    std::minstd_rand random(5);
    const char* const wanted = getenv("BRAID_NODES_CALLS");  // NOLINT(concurrency-mt-unsafe)
    const uint64_t num_calls = wanted != nullptr ? strtoull(wanted, nullptr, 10) : 60;
    for (uint64_t number = 0; number < num_calls; ++number) {
      const uint64_t count = 1 + random() % (random() % 4 == 0 ? 100'000 : 500);
      const Status called = call(rank, number, count, random() % 2 == 0);
      ASSERT_TRUE(called.ok()) << called.to_string();
    }
    EXPECT_TRUE(seats_[static_cast<size_t>(rank)]->status().ok());
  });
  close(true);
}

TEST_F(SeatsOverNodes, NothingIsDecidedAtOtherOperations) {
  RailLibrary library(0);
  sign();
  on_ranks([&](int rank) {
    EXPECT_FALSE(open(rank, library, BRAID_NCCL_ALL_REDUCE).ok());
    EXPECT_TRUE(seats_[static_cast<size_t>(rank)]->is_later());
    EXPECT_TRUE(open(rank, library, BRAID_NCCL_REDUCE_SCATTER).ok());
    EXPECT_FALSE(seats_[static_cast<size_t>(rank)]->is_later());
  });
  close(true);
}

// On one host any value goes.
TEST_F(SeatsOverNodes, ARankMayWaitForTheOthersForWeeks) {
  set("BRAID_NCCL_MEET", "40000min");
  RailLibrary library(0);
  sign();
  on_ranks([&](int rank) {
    const Status opened = open(rank, library);
    EXPECT_TRUE(opened.ok()) << opened.to_string();
    EXPECT_FALSE(seats_[static_cast<size_t>(rank)]->is_lost());
  });
  close(true);
}

// A rank without braid: the others do not wait for it, and none takes over.
TEST_F(SeatsOverNodes, WithoutOneRankItIsNcclsOnAll) {
  RailLibrary library(0);
  sign(kRanks - 1);
  const int64_t began_ns = now_ns();
  on_ranks([&](int rank) {
    EXPECT_FALSE(open(rank, library).ok());
    EXPECT_FALSE(seats_[static_cast<size_t>(rank)]->is_lost());
  });
  EXPECT_LT(now_ns() - began_ns, 5_s);
  close(false);
}

// ncclCommRevoke closes a seat and leaves the communicator to the program, whose next call came to a
// null pointer. The others hear that the rank has ended.
// 64 nodes of 8, of which some have signed: the roll hung up on such numbers, and the first call was an
// error on all ranks.
TEST_F(SeatsOverNodes, MoreRanksThanAreTakenOverAreNcclsOnAll) {
  RailLibrary library(0);
  sign();
  on_ranks([&](int rank) {
    const auto& seat = seats_[static_cast<size_t>(rank)];
    const Status opened =
        seat->open({rank, 512, rank % kPerNode, BRAID_NCCL_ALL_GATHER, library.table()});
    EXPECT_EQ(opened.code(), Code::kUnsupported) << opened.to_string();
    EXPECT_NE(opened.message().find("512 ranks"), std::string::npos) << opened.message();
    EXPECT_FALSE(seat->is_lost());
  });
  close(true);
}

TEST_F(SeatsOverNodes, ACallOnASeatThatWasClosedIsAnError) {
  RailLibrary library(0);
  sign();
  seats_[3]->interrupt();
  seats_[3]->close(false);
  on_ranks([&](int rank) {
    EXPECT_FALSE(open(rank, library).ok());
    EXPECT_FALSE(seats_[static_cast<size_t>(rank)]->is_lost());
  });
  close(false);
}

TEST_F(SeatsOverNodes, ARaceOnASeatThatWasClosedIsAnError) {
  RailLibrary library(0);
  sign();
  on_ranks([&](int rank) {
    ASSERT_TRUE(open(rank, library).ok());
    braid_nccl_choice choice{};
    ASSERT_TRUE(race(rank, BRAID_NCCL_ALL_GATHER, choice).ok());
  });
  on_ranks([&](int rank) { seats_[static_cast<size_t>(rank)]->close(false); });
  on_ranks([&](int rank) {
    braid_nccl_choice choice{};
    EXPECT_FALSE(race(rank, BRAID_NCCL_REDUCE_SCATTER, choice).ok());
    EXPECT_FALSE(call(rank, 0, 8, true).ok());
  });
  close(false);
}

// A race's meeting is in no call of the comm's, for which a close waits: the connection to the roll
// was freed under it.
TEST_F(SeatsOverNodes, TheEndWaitsForWhoIsAtAMeeting) {
  const std::string key = marked_key();
  Config config;
  ASSERT_TRUE(config.set("BRAID_NCCL_NODES", "on").ok());
  std::vector<std::unique_ptr<AcrossNodes>> all;
  for (int rank = 0; rank < 2; ++rank) {
    auto across = AcrossNodes::sign(key, config, 1, 0);
    ASSERT_TRUE(across.ok()) << across.status().to_string();
    all.push_back(std::move(across).value());
  }
  const auto never = [] { return false; };
  std::thread other([&] { (void)all[1]->come(1, 2, 0, never); });
  (void)all[0]->come(0, 2, 0, never);
  other.join();
  std::latch is_at_it(1);
  std::atomic<bool> has_ended{false};
  std::atomic<int> num_late{0};
  std::thread meeting([&] {
    bool is_first = true;
    const auto met = all[0]->meet(0, 300_ms, [&] {
      if (std::exchange(is_first, false)) is_at_it.count_down();
      if (has_ended) ++num_late;
      return false;
    });
    EXPECT_TRUE(met.ok() && !met.value()) << "the other one does not come";
  });
  is_at_it.wait();
  all[0]->end(false);
  has_ended = true;
  meeting.join();
  EXPECT_EQ(num_late, 0);
}

// Windows of a communicator whose verdict was lost came to a comm that was never made.
TEST_F(SeatsOverNodes, AWindowOfALostCommunicatorIsAnError) {
  RailLibrary library(0);
  std::unique_ptr<RollHost> host;
  ASSERT_NO_FATAL_FAILURE(sign_at(host));
  host.reset();
  on_ranks([&](int rank) {
    Seat& seat = *seats_[static_cast<size_t>(rank)];
    EXPECT_FALSE(open(rank, library).ok());
    EXPECT_TRUE(seat.is_lost());
    std::byte memory[64];
    EXPECT_FALSE(seat.add_window(memory, sizeof memory).ok());
    EXPECT_TRUE(seat.drop_window(memory).ok()) << "nothing of it is mapped";
  });
  close(false);
}

// A child's id is its parent's, whose maker need not be one of the child's ranks. It ended the child's
// group with it, as the death of a rank that lived.
TEST_F(SeatsOverNodes, WhoMadeTheIdMayEndAfterTheFirstCall) {
  RailLibrary library(0);
  std::unique_ptr<RollHost> host;
  ASSERT_NO_FATAL_FAILURE(sign_at(host));
  std::barrier all_here(kRanks, [&]() noexcept { host.reset(); });
  on_ranks([&](int rank) {
    EXPECT_TRUE(open(rank, library).ok());
    all_here.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for the news
    braid_nccl_choice choice{};
    const Status raced = race(rank, BRAID_NCCL_ALL_GATHER, choice);
    EXPECT_TRUE(raced.ok()) << raced.to_string();
    const Status called = call(rank, 1, 1000, true);
    EXPECT_TRUE(called.ok()) << called.to_string();
    const Status status = seats_[static_cast<size_t>(rank)]->status();
    EXPECT_TRUE(status.ok()) << status.to_string();
  });
  close(true);
}

// Whatever fails while rails are made, no rank has any, and all leave it to NCCL.
TEST_F(SeatsOverNodes, RailsAreAllRanksOrNobodys) {
  for (const int failing : {-1, 0, 1}) {
    RailLibrary library(0);
    if (failing < 0) library.fail_to_make_ids();
    if (failing >= 0) library.fail_to_make(failing);
    sign();
    on_ranks([&](int rank) {
      ASSERT_TRUE(open(rank, library).ok());
      braid_nccl_choice choice{};
      EXPECT_TRUE(race(rank, BRAID_NCCL_ALL_GATHER, choice).ok());
      EXPECT_EQ(choice.won, 0U);
    });
    close(true);
  }
}

// What a node has to do among its own ranks follows from its disk, clock and memory. Nodes that had not
// as much to do were at different exchanges from then on: all ranks lost the communicator.
TEST_F(SeatsOverNodes, NodesNeedNotBeEquallyWarm) {
  set("BRAID_TUNE", "auto");
  set("BRAID_TUNE_TIME", "1s");
  const std::string caches = testing::TempDir() + "seats_over_nodes_" + std::to_string(getpid());
  for (const bool is_one_cold : {false, true}) {  // first it warms the first node's
    RailLibrary library(0);
    const std::string key = marked_key();
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool is_other = is_one_cold && rank >= kPerNode;
      set("BRAID_HOST_ID", "seats-node-" + std::to_string(rank / kPerNode));
      set("BRAID_CACHE_DIR", caches + (is_other ? "/other" : "/first"));
      auto seat = Seat::sign(key, 0, machine(rank));
      ASSERT_TRUE(seat.ok()) << seat.status().to_string();
      seats_.push_back(std::move(seat).value());
    }
    on_ranks([&](int rank) {
      ASSERT_TRUE(open(rank, library).ok());
      for (const int op : {BRAID_NCCL_ALL_GATHER, BRAID_NCCL_REDUCE_SCATTER}) {
        braid_nccl_choice choice{};
        const Status raced = race(rank, op, choice, true);
        EXPECT_TRUE(raced.ok()) << raced.to_string();
        EXPECT_NE(choice.won, 0U);
        const Status called = call(rank, 1, 100'000, op == BRAID_NCCL_ALL_GATHER);
        EXPECT_TRUE(called.ok()) << called.to_string();
      }
      EXPECT_TRUE(seats_[static_cast<size_t>(rank)]->status().ok());
    });
    close(true);
  }
  EXPECT_FALSE(std::filesystem::is_empty(caches + "/other")) << "that node has tuned";
  std::filesystem::remove_all(caches);
}

// "Every rank has the same verdict" was said of the ranks of one node.
TEST_F(SeatsOverNodes, OneNodeWithoutMemoryLeavesLargeMessagesToNcclOnAll) {
  set("BRAID_GPU_SCRATCH", "64MiB");
  RailLibrary library(0);
  sign();
  std::barrier all_here(kRanks);
  on_ranks([&](int rank) {
    EXPECT_TRUE(open(rank, library).ok());
    braid_nccl_choice choice{};
    EXPECT_TRUE(race(rank, BRAID_NCCL_ALL_GATHER, choice).ok());
    all_here.arrive_and_wait();
    if (rank == 0) machine(0).fail("alloc", 0, exhausted("out of memory"));
    all_here.arrive_and_wait();
    choice = {};
    const Status raced = race(rank, BRAID_NCCL_ALL_GATHER, choice, true);
    EXPECT_TRUE(raced.ok()) << raced.to_string();
    EXPECT_EQ(choice.won, 0U) << "rank " << rank;
    const Status next = race(rank, BRAID_NCCL_REDUCE_SCATTER, choice, true);
    EXPECT_TRUE(next.ok()) << next.to_string();
    EXPECT_NE(choice.won, 0U) << "there is memory again: rank " << rank;
    const Status called = call(rank, 2, 1000, true);
    EXPECT_TRUE(called.ok()) << called.to_string();
    EXPECT_TRUE(seats_[static_cast<size_t>(rank)]->status().ok());
  });
  close(true);
}

TEST_F(SeatsOverNodes, AWindowThatOneNodeRefusesIsNobodys) {
  RailLibrary library(0);
  sign();
  std::barrier all_here(kRanks);
  on_ranks([&](int rank) {
    Seat& seat = *seats_[static_cast<size_t>(rank)];
    EXPECT_TRUE(open(rank, library).ok());
    test::GuardedMemory memory(machine(rank), 4096);
    all_here.arrive_and_wait();
    if (rank == kRanks - 1)
      machine(rank).fail("pointer_facts", 0, invalid_argument("it was freed"));
    all_here.arrive_and_wait();
    const Status refused = seat.add_window(memory.data(), memory.bytes());
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(refused.message(), testing::HasSubstr("it was freed"));
    EXPECT_FALSE(seat.drop_window(memory.data()).ok()) << "it is registered: rank " << rank;
    const Status added = seat.add_window(memory.data(), memory.bytes());
    EXPECT_TRUE(added.ok()) << added.to_string();
    braid_nccl_choice choice{};
    const Status raced = race(rank, BRAID_NCCL_ALL_GATHER, choice, true);
    EXPECT_TRUE(raced.ok()) << raced.to_string();
    const Status called = call(rank, 3, 1000, true);
    EXPECT_TRUE(called.ok()) << called.to_string();
    all_here.arrive_and_wait();
    EXPECT_TRUE(seat.drop_window(memory.data()).ok());
  });
  close(true);
}

// Whose GPUs are shared a node knows of its own ranks alone, and those look for no disturbance: they
// were at another exchange of the race than the other node's.
TEST_F(SeatsOverNodes, RanksOfOneNodeMayShareAGpu) {
  set("BRAID_TUNE", "auto");
  set("BRAID_TUNE_TIME", "1s");
  const std::string cache = testing::TempDir() + "seats_that_share_" + std::to_string(getpid());
  set("BRAID_CACHE_DIR", cache);
  RailLibrary library(0);
  const braid_nccl_real real{nullptr, 22809, 0,  [](void*, const braid_nccl_call*) { return 0; },
                             {},      {},    {}, {}};
  sign();
  on_ranks([&](int rank) {
    Seat& seat = *seats_[static_cast<size_t>(rank)];
    const int device = rank < kPerNode ? 0 : rank % kPerNode;
    const Status opened = seat.open({rank, kRanks, device, BRAID_NCCL_ALL_GATHER, library.table()});
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    braid_nccl_choice choice{};
    const Status raced = seat.race(BRAID_NCCL_ALL_GATHER, {}, &real, choice);
    EXPECT_TRUE(raced.ok()) << raced.to_string();
    EXPECT_TRUE(seat.status().ok());
  });
  close(true);
  std::filesystem::remove_all(cache);
}

// One that fails before it comes to the others' exchange let them wait for it, and its next call came to
// rails that were never made.
TEST_F(SeatsOverNodes, ARankThatFailsOnItsWayToTheRailsTellsTheOthers) {
  RailLibrary library(0);
  sign();
  std::barrier all_here(kRanks);
  const int64_t began_ns = now_ns();
  on_ranks([&](int rank) {
    EXPECT_TRUE(open(rank, library).ok());
    all_here.arrive_and_wait();
    if (rank == 0) machine(kRanks - 1).fail("use_device", 0, driver_error("out of order"));
    all_here.arrive_and_wait();
    braid_nccl_choice choice{};
    EXPECT_FALSE(race(rank, BRAID_NCCL_ALL_GATHER, choice).ok());
    EXPECT_FALSE(call(rank, 0, 8, true).ok());
  });
  EXPECT_LT(now_ns() - began_ns, 40_s) << "a race's patience is longer";
  close(false);
}

// NCCL's making of a communicator never ends where a rank has died meanwhile. Who aborts is not held
// up by it, and what is made after all is aborted by the thread that made it.
TEST_F(SeatsOverNodes, AnAbortEndsTheMakingOfRails) {
  RailLibrary library(0);
  library.hold();
  sign();
  std::thread watchdog([&] {
    while (library.num_making() < kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t began_ns = now_ns();
    std::vector<std::thread> aborts;
    for (auto& seat : seats_) aborts.emplace_back([&] { seat->close(false); });
    for (std::thread& abort : aborts) abort.join();
    EXPECT_LT(now_ns() - began_ns, 10_s) << "a race's patience, in which rails are made, is longer";
  });
  on_ranks([&](int rank) {
    ASSERT_TRUE(open(rank, library).ok());
    braid_nccl_choice choice{};
    EXPECT_FALSE(race(rank, BRAID_NCCL_ALL_GATHER, choice).ok());
  });
  watchdog.join();
  EXPECT_EQ(library.num_aborted(), 0);
  library.let_go();
  const Deadline patience = test::test_deadline();
  while (library.num_aborted() < kRanks && !patience.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(library.num_aborted(), kRanks);
  close(false);
}

// NCCL's destroy waits for what is enqueued: for ever, where another rank's process is stopped.
TEST_F(SeatsOverNodes, AnEndInPeaceBreaksOffARailWhoseWorkHasNoEnd) {
  RailLibrary library(0);
  sign();
  on_ranks([&](int rank) {
    ASSERT_TRUE(open(rank, library).ok());
    braid_nccl_choice choice{};
    ASSERT_TRUE(race(rank, BRAID_NCCL_ALL_GATHER, choice).ok());
    EXPECT_TRUE(call(rank, 0, 100, true).ok());
  });
  for (const auto& machine : machines_)
    machine->go_on_until([&library] { return library.num_aborted() == kRanks; });
  close(true);
  EXPECT_EQ(library.num_aborted(), kRanks);
  EXPECT_EQ(library.num_destroyed(), 0);
}

// A rail that fails at any call: an error on every rank, of the call or of the state, and no hang.
TEST_F(SeatsOverNodes, ARailThatFailsAtAnyCallIsAnErrorOnAll) {
  // All threads wait for each other: one of three under a sanitizer.
  for (uint64_t at = 2; at < 8;
       at += kIsSanitized ? 3 : 1) {  // the first two warm it up, where both ranks are as quick
    RailLibrary library(3);
    library.fail_at(at);
    sign();
    const int64_t began_ns = now_ns();
    on_ranks([&](int rank) {
      ASSERT_TRUE(open(rank, library).ok());
      braid_nccl_choice choice{};
      Status status = race(rank, BRAID_NCCL_ALL_GATHER, choice);
      for (uint64_t number = 0; number < 8 && status.ok(); ++number) {
        test::GuardedMemory whole(machine(rank), 16'000), part(machine(rank), 4000);
        braid_nccl_call asked{};
        asked.op = BRAID_NCCL_ALL_GATHER;
        asked.dtype = static_cast<int>(Dtype::kFloat32);
        asked.count = 1000;
        asked.send = part.data();
        asked.recv = whole.data();
        status = seats_[static_cast<size_t>(rank)]->run(asked);
      }
      for (int look = 0; look < 500 && status.ok(); ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        status = seats_[static_cast<size_t>(rank)]->status();
      }
      EXPECT_FALSE(status.ok()) << "rank " << rank << ", failure at " << at;
    });
    EXPECT_LT(now_ns() - began_ns, 20_s);
    close(false);
  }
}

}  // namespace
}  // namespace braid::nccl::seats_over_nodes
