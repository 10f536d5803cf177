// What threads cannot show: a rank that is killed or stopped, a link that goes down and comes back,
// what is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include "base/sanitizer.h"
#include "support/processes.h"
#include "support/shm_files.h"
#include "transport/rdma/rdma_ranks.h"

namespace braid::transport::rdma {
namespace {

using namespace braid::literals;
using test::FileGroup;

// ---- the child's side
// ------------------------------------------------------------------------------------------

using Child = test::SpawnedRank;

std::unique_ptr<RdmaLane> connect_child(FileGroup& group, const std::string& name,
                                        const std::string& provider, const std::string& address,
                                        uint32_t slot_bytes = 16_KiB) {
  RdmaLaneOptions o;
  o.name = name;
  o.provider = provider;
  o.address = address;
  o.slot_bytes = slot_bytes;
  o.depth_pieces = 16;
  auto lane = connect(*sys::real_fabric().value(), group, o, Deadline::after_ns(15_s));
  if (lane.ok()) return std::move(lane).value();
  ADD_FAILURE() << lane.status().to_string();
  return nullptr;
}

// Rank 1 is killed in the midst of a stream; rank 0 must neither hang nor abort, on closing too.
void run_killed(const Child& child, const std::string& provider) {
  FileGroup group(child.directory, child.rank, 2);
  auto lane = connect_child(group, "rdma:" + provider, provider, "127.0.0.1");
  ASSERT_NE(lane, nullptr);
  Stream stream(*lane, child.rank, 1 - child.rank, 1'000'000);
  const Deadline life = Deadline::after_ns(provider == "tcp" ? 10_s : 1_s);
  while (!life.passed() && lane->health(1 - child.rank).ok()) {
    if (child.rank == 1 && stream.received() > 50) raise(SIGKILL);
    if (!stream.step()) sched_yield();
  }
  EXPECT_EQ(stream.trouble(), "");
  // tcp tells; provider shm never does (the group's death detection and deadlines do).
  if (provider == "tcp") {
    EXPECT_FALSE(lane->health(1).ok());
    EXPECT_NE(lane->health(1).message().find("to rank 1"), std::string::npos);
  }
  EXPECT_GT(lane->posted(1) - lane->acked(1), 0u);
  const int64_t start = now_ns();
  lane.reset();
  EXPECT_LT(now_ns() - start, 2_s) << "closing beside a dead peer";
}

// The kernel keeps the connection of a stopped process: nothing fails, pieces wait.
void run_stopped(const Child& child, const std::string& provider) {
  FileGroup group(child.directory, child.rank, 2);
  auto lane = connect_child(group, "rdma:" + provider, provider, "127.0.0.1");
  ASSERT_NE(lane, nullptr);
  Stream stream(*lane, child.rank, 1 - child.rank, 3000);
  const Deadline deadline = Deadline::after_ns(20_s);
  while (stream.received() < 100 && !deadline.passed()) stream.step();
  if (child.rank == 1) {
    test::write_file(child.directory + "/stopping", "");
    raise(SIGSTOP);
  }
  EXPECT_TRUE(stream.run(20_s)) << stream.trouble();
  EXPECT_TRUE(group.barrier("end", Deadline::after_ns(10_s)).ok());
}

bool shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Two rails; rail 0 is taken down for a second under way. TCP keeps the connection, so no renewal
// may happen.
void run_cut(const Child& child) {
  if (unshare(CLONE_NEWNET) != 0) _exit(test::kSkipExit);
  test::write_file(child.directory + "/namespace" + std::to_string(child.rank), "");
  ASSERT_TRUE(test::wait_for_file(child.directory + "/go", Deadline::after_ns(10_s)));
  const std::string host = std::to_string(child.rank + 1);
  ASSERT_TRUE(shell("ip link set lo up"));
  for (const std::string rail : {"0", "1"}) {
    ASSERT_TRUE(shell("ip addr add 10.77." + rail + "." + host + "/24 dev rail" + rail));
    ASSERT_TRUE(shell("ip link set rail" + rail + " up"));
  }
  FileGroup group(child.directory, child.rank, 2);
  auto rail0 = connect_child(group, "rdma:rail0", "tcp", "10.77.0." + host);
  auto rail1 = connect_child(group, "rdma:rail1", "tcp", "10.77.1." + host);
  ASSERT_TRUE(rail0 && rail1);

  const int peer = 1 - child.rank;
  Stream hit(*rail0, child.rank, peer, 4000), free(*rail1, child.rank, peer, 1'000'000);
  const Deadline deadline = Deadline::after_ns(30_s);
  while (hit.received() < 200 && !deadline.passed()) hit.step(), free.step();
  if (child.rank == 0) {
    EXPECT_TRUE(shell("ip link set rail0 down"));
  }
  const int64_t cut_at = now_ns();
  uint64_t acked = 0, free_received = 0;
  for (; now_ns() - cut_at < 1_s; hit.step(), free.step()) {
    if (now_ns() - cut_at > 300_ms && acked == 0)
      acked = rail0->acked(peer), free_received = free.received();
  }
  if (child.rank == 0) {
    EXPECT_EQ(rail0->acked(peer), acked) << "nothing passes a link that is down";
    EXPECT_GT(rail0->posted(peer), rail0->acked(peer)) << "pieces were outstanding";
    EXPECT_GT(free.received(), free_received + 10) << "the other rail goes on";
    EXPECT_TRUE(shell("ip link set rail0 up"));
  }
  const int64_t up_at = now_ns();
  while (!hit.done() && hit.trouble().empty() && !deadline.passed()) hit.step(), free.step();
  EXPECT_TRUE(hit.done()) << hit.trouble() << " received " << hit.received() << " acked "
                          << rail0->acked(peer) << " " << rail0->health(peer).to_string();
  EXPECT_EQ(free.trouble(), "");
  EXPECT_EQ(rail0->life(peer) + rail1->life(peer), 0u) << "the connection survives the cut";
  if (child.rank == 0)
    fmt::print("rail 0 was back and done {} after up\n", format_ns(now_ns() - up_at));
  for (const Deadline end = Deadline::after_ns(200_ms); !end.passed();) hit.step(), free.step();
  EXPECT_TRUE(group.barrier("end", Deadline::after_ns(20_s)).ok());
}

// Loopback figures for docs: 64 KiB pieces one way, and a small piece there and back.
void run_speed(const Child& child, const std::string& provider) {
  FileGroup group(child.directory, child.rank, 2);
  auto lane = connect_child(group, "rdma:" + provider, provider, "127.0.0.1", 64_KiB);
  ASSERT_NE(lane, nullptr);
  const int peer = 1 - child.rank;
  const std::vector<std::byte> payload(64_KiB);
  const auto poll = [&] {
    if (!lane->progress()) sched_yield();
  };
  const auto take = [&] {
    while (lane->available(peer) == 0) poll();
    lane->release(peer, 1);
  };
  constexpr int kTrips = 3000, kPieces = 20000;
  int64_t start = now_ns();
  for (int i = 0; i < kTrips; ++i) {
    if (child.rank == 0) lane->try_put(PeerSet::only(peer), {}, std::span(payload).first(64));
    take();
    if (child.rank == 1) lane->try_put(PeerSet::only(peer), {}, std::span(payload).first(64));
    lane->progress();
  }
  if (child.rank == 0)
    fmt::print("{}: 64 B piece there and back {}\n", provider,
               format_ns((now_ns() - start) / kTrips));
  start = now_ns();
  for (int i = 0; i < kPieces; ++i) {
    if (child.rank == 1) {
      take();
      continue;
    }
    while (lane->try_put(PeerSet::only(peer), {}, payload) != PutResult::kAccepted)
      lane->progress();
  }
  while (child.rank == 0 && lane->acked(peer) < lane->posted(peer)) lane->progress();
  if (child.rank == 0)
    fmt::print("{}: 64 KiB pieces {:.2f} GB/s\n", provider,
               65536.0 * kPieces / static_cast<double>(now_ns() - start));
  for (const Deadline end = Deadline::after_ns(100_ms); !end.passed();) lane->progress();
}

TEST(RdmaChild, DISABLED_Run) {
  if (std::getenv("BRAID_TEST_SCENARIO") == nullptr) GTEST_SKIP() << "started by RdmaProcesses";
  const Child child;
  const std::string provider = child.scenario.substr(child.scenario.find(' ') + 1);
  if (child.scenario.starts_with("killed")) run_killed(child, provider);
  if (child.scenario.starts_with("stopped")) run_stopped(child, provider);
  if (child.scenario.starts_with("speed")) run_speed(child, provider);
  if (child.scenario == "cut") run_cut(child);
}

// ---- the parent's side
// -----------------------------------------------------------------------------------------

class RdmaProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (kIsThreadSanitized)
      GTEST_SKIP() << "skipped: processes that kill and stop each other are too slow under the "
                      "thread sanitizer";
    if (const auto library = sys::real_fabric(); !library.ok())
      GTEST_SKIP() << library.status().message();
  }
  void start(const std::string& scenario) {
    for (int r = 0; r < 2; ++r)
      pids_.push_back(test::spawn_rank("*RdmaChild*", scenario, scratch_.path(), r));
  }
  int join(int rank, int64_t timeout_ns = 60_s) {
    return test::join_rank(pids_[rank], Deadline::after_ns(timeout_ns));
  }
  void expect_no_shm_files() const {
    EXPECT_THAT(shm_files_.left_by(pids_), testing::IsEmpty()) << "stayed behind";
  }
  test::ScratchDirectory scratch_;
  test::ShmFiles shm_files_;
  std::vector<pid_t> pids_;
};

TEST_F(RdmaProcesses, KilledPeerIsNoticedAndClosingIsQuickOverTcp) {
  start("killed tcp");
  EXPECT_EQ(join(1), 128 + SIGKILL);
  EXPECT_EQ(join(0), 0);
}

TEST_F(RdmaProcesses, KilledPeerLeavesNothingBehindOverShm) {
  start("killed shm");
  EXPECT_EQ(join(1), 128 + SIGKILL);
  EXPECT_EQ(join(0), 0);
  expect_no_shm_files();
}

TEST_F(RdmaProcesses, StoppedPeerGoesOnWhereItWas) {
  for (const std::string provider : {"tcp", "shm"}) {
    pids_.clear();
    test::ScratchDirectory fresh;
    std::swap(scratch_, fresh);
    start("stopped " + provider);
    ASSERT_TRUE(test::wait_for_file(scratch_.path() + "/stopping", Deadline::after_ns(20_s)));
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    kill(pids_[1], SIGCONT);
    EXPECT_EQ(join(0), 0) << provider;
    EXPECT_EQ(join(1), 0) << provider;
    expect_no_shm_files();
  }
}

TEST_F(RdmaProcesses, CutAndRestoredRailDeliversEverythingOnceAndInOrder) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  if (!shell("ip -V")) GTEST_SKIP() << "the program ip (iproute2) is not here";
  start("cut");
  for (int r = 0; r < 2; ++r) {
    if (!test::wait_for_file(scratch_.path() + "/namespace" + std::to_string(r),
                             Deadline::after_ns(10_s))) {
      const int exit = join(r, 1_s);
      ASSERT_EQ(exit, test::kSkipExit);
      GTEST_SKIP() << "no network namespace can be made here";
    }
  }
  const std::string a = std::to_string(pids_[0]), b = std::to_string(pids_[1]);
  for (const std::string rail : {"0", "1"})
    ASSERT_TRUE(shell("ip link add rail" + rail + " netns " + a + " type veth peer name rail" +
                      rail + " netns " + b));
  test::write_file(scratch_.path() + "/go", "");
  EXPECT_EQ(join(0), 0);
  EXPECT_EQ(join(1), 0);
}

// Not a test: prints figures. Run with --gtest_also_run_disabled_tests --gtest_filter=*Speed*
TEST_F(RdmaProcesses, DISABLED_Speed) {
  for (const std::string provider : {"tcp", "shm"}) {
    pids_.clear();
    test::ScratchDirectory fresh;
    std::swap(scratch_, fresh);
    start("speed " + provider);
    EXPECT_EQ(join(0), 0);
    EXPECT_EQ(join(1), 0);
  }
}

}  // namespace
}  // namespace braid::transport::rdma
