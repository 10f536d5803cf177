// What every Rail must do (coll/nodes/rail.h), on every implementation that there is: one list at
// the end. Nodes are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <climits>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bindings/nccl/core/nodes/mark.h"
#include "bindings/nccl/core/nodes/nccl_rail.h"
#include "bindings/nccl/nccl_of_threads.h"
#include "bindings/nccl/shim.h"
#include "coll/all_gather/all_gather.h"
#include "coll/messages/messages.h"
#include "support/fake_rail.h"
#include "support/gpu_ranks.h"
#include "support/tensors.h"

namespace braid::nccl::rails_suite {
namespace {

using coll::nodes::Passage;
using coll::nodes::Rail;

/// Calls `body` with a rail for every node, each on a thread.
using Body = std::function<void(Rail& rail, int node)>;
struct Kind {
  const char* name;
  std::function<void(int num_nodes, const Body& body)> on_nodes;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

void on_threads(int num_nodes, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int node = 0; node < num_nodes; ++node) threads.emplace_back([&, node] { body(node); });
  for (std::thread& thread : threads) thread.join();
}

// ---- between threads, on time and late ----

void on_fakes(int num_nodes, uint64_t seed, const Body& body) {
  test::RailHub hub(num_nodes, seed);
  on_threads(num_nodes, [&](int node) {
    test::FakeRail rail(hub, node);
    body(rail, node);
  });
}

// ---- NCCL's, made of the shim's table as the core gets it ----

/// A core that takes nothing over, and keeps what it is given for rails.
thread_local const braid_nccl_rails* the_rails = nullptr;

const braid_nccl_core* core_that_keeps_rails() {
  static const braid_nccl_core core = [] {
    braid_nccl_core made{};
    made.version = BRAID_NCCL_CORE_VERSION;
    made.sign = [](const void*, size_t, uint64_t, braid_nccl_why) {
      return reinterpret_cast<braid_nccl_seat*>(&the_rails);
    };
    made.seal = [](braid_nccl_seat*) {};
    made.is_capturing = [](int, void*) { return 0; };
    made.open = [](braid_nccl_seat*, const braid_nccl_place* place, braid_nccl_why) {
      the_rails = place->rails;
      return 0;
    };
    made.close = [](braid_nccl_seat*, int) {};
    made.release = [](braid_nccl_seat*) {};
    return made;
  }();
  return &core;
}

/// A program's first all_gather, at which the core is given them.
const braid_nccl_rails* rails_of(Shim& shim, int node, int num_nodes, const UniqueId& id) {
  NcclComm comm = nullptr;
  (void)shim.create("program", num_nodes, &comm, [&] {
    return programs::real_of(node).init_rank_config(&comm, num_nodes, id, node, nullptr);
  });
  std::vector<char> send(4), recv(static_cast<size_t>(4 * num_nodes));
  Call call;
  call.op = Op::kAllGather;
  call.send = send.data();
  call.recv = recv.data();
  call.count = 4;
  call.comm = comm;
  EXPECT_EQ(shim.submit(call), NcclResult::kSuccess);
  return the_rails;
}

/// The library's calls that connect more than sends and receives do.
std::atomic<int> num_collectives{0};
thread_local int node_of_program = 0;

/// From when it is said on calls go on for ever.
std::atomic<bool> does_not_block{false}, was_aborted{false};
std::atomic<int> num_looks{0}, num_looks_when_aborted{0};

Real real_that_counts(int node) {
  node_of_program = node;
  Real real = programs::real_of(node);
  real.all_gather = [](const void* send, void* recv, size_t count, int dtype, NcclComm comm,
                       CudaStream stream) {
    ++num_collectives;
    return programs::real_of(node_of_program).all_gather(send, recv, count, dtype, comm, stream);
  };
  real.group_end = [] {
    const NcclResult ended = programs::real_of(node_of_program).group_end();
    return does_not_block ? NcclResult::kInProgress : ended;
  };
  real.get_async_error = [](NcclComm comm, NcclResult* now) {
    if (!does_not_block) return programs::real_of(node_of_program).get_async_error(comm, now);
    ++num_looks;
    if (was_aborted) ++num_looks_when_aborted;
    *now = NcclResult::kInProgress;
    return NcclResult::kSuccess;
  };
  real.abort = [](NcclComm comm) {
    was_aborted = true;
    return programs::real_of(node_of_program).abort(comm);
  };
  return real;
}

void on_nccl(int num_nodes, const Body& body) {
  std::vector<std::unique_ptr<test::GraphCuda>> machines;
  std::vector<programs::NcclOfThreads::Gpu> gpus;
  for (int node = 0; node < num_nodes; ++node) {
    machines.push_back(std::make_unique<test::GraphCuda>(1));
    test::define_team_kernels(*machines.back());
    gpus.push_back({machines.back().get(), 0});
  }
  programs::NcclOfThreads library(gpus);
  programs::the_library = &library;
  UniqueId program{}, of_rail{};
  ASSERT_EQ(library.make_id(0, &program), NcclResult::kSuccess);
  ASSERT_EQ(library.make_id(0, &of_rail), NcclResult::kSuccess);
  on_threads(num_nodes, [&](int node) {
    Settings settings;
    settings.nodes = Nodes::kOn;
    Shim shim(real_that_counts(node), settings, core_that_keeps_rails);
    const braid_nccl_rails* const rails = rails_of(shim, node, num_nodes, program);
    ASSERT_NE(rails, nullptr);
    sys::FakeCuda& cuda = *machines[static_cast<size_t>(node)];
    test::run_gpus(1, cuda, {}, [&](test::GpuRank& gpu) {
      const auto gives_up = [deadline = test::test_deadline()] {
        return deadline.passed() ? timeout("the test's deadline") : Status();
      };
      auto rail = NcclRail::make(*rails, std::string(of_rail.bytes, sizeof of_rail.bytes),
                                 {num_nodes, 1}, node, gpu.device, gives_up);
      ASSERT_TRUE(rail.ok()) << rail.status().to_string();
      body(**rail, node);
    });
  });
}

// ---- braid's host lanes: libfabric over TCP ----

/// Of host memory, as all memory of fake GPUs is. A call is done when it returns.
class LaneRail final : public Rail {
 public:
  explicit LaneRail(comm::Comm& comm) : comm_(comm) {}

  Status exchange(const Passage& passage, sys::Stream /*stream*/) override {
    using Way = coll::Message::Way;
    std::vector<coll::Message> messages;
    if (passage.send_bytes > 0)
      messages.push_back({Way::kSend, passage.to, sys::pointer_to<void>(passage.send),
                          passage.send_bytes, Dtype::kUint8});
    if (passage.recv_bytes > 0)
      messages.push_back({Way::kRecv, passage.from, sys::pointer_to<void>(passage.recv),
                          passage.recv_bytes, Dtype::kUint8});
    return noted(coll::exchange(comm_, messages));
  }
  Status all_gather(sys::DevicePtr send, sys::DevicePtr recv, uint64_t bytes,
                    sys::Stream /*stream*/) override {
    return noted(coll::all_gather(comm_, sys::pointer_to<void>(send), sys::pointer_to<void>(recv),
                                  bytes, Dtype::kUint8));
  }
  Status error() override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void abort() override { comm_.abort("the rail's user ended it"); }

 private:
  Status noted(Status status) {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = status;
    return status;
  }
  comm::Comm& comm_;
  std::mutex mutex_;
  Status error_;
};

void on_lanes(int num_nodes, const Body& body) {
  auto hub = std::make_shared<test::ThreadHub>(num_nodes);
  on_threads(num_nodes, [&](int node) {
    const Config config =
        test::make_config({{"BRAID_LINKS", "rdma"},
                           {"BRAID_RDMA_ADDRS", "127.0.0.1"},
                           {"BRAID_TIMEOUT", "20s"},
                           {"BRAID_HOST_ID", "rail-node-" + std::to_string(node)}});
    auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, node), config);
    ASSERT_TRUE(comm.ok()) << comm.status().to_string();
    LaneRail rail(**comm);
    body(rail, node);
    (void)(*comm)->close();
  });
}

// ---- the suite ----

class Rails : public testing::TestWithParam<Kind> {
 protected:
  static std::vector<std::byte> bytes_of(int node, uint64_t call, uint64_t num) {
    std::vector<std::byte> made(num);
    for (uint64_t i = 0; i < num; ++i) made[i] = static_cast<std::byte>(test::mixed(call, node, i));
    return made;
  }
  static sys::DevicePtr at(const std::vector<std::byte>& memory) {
    return reinterpret_cast<sys::DevicePtr>(memory.data());
  }
  /// Each to the next but so many, `sent` bytes from a node to its receiver by the sender's number.
  static void pass(Rail& rail, int node, int num_nodes, int step, uint64_t call,
                   const std::function<uint64_t(int)>& sent) {
    const int to = (node + step) % num_nodes, from = (node + num_nodes - step) % num_nodes;
    const auto send = bytes_of(node, call, sent(node));
    std::vector<std::byte> recv(sent(from), std::byte{0xee});
    const Status status =
        rail.exchange({at(send), send.size(), to, at(recv), recv.size(), from}, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(recv == bytes_of(from, call, sent(from))) << "call " << call << " on node " << node;
  }
};

TEST_P(Rails, PassWhatIsSent) {
  for (const int num_nodes : {2, 3})
    GetParam().on_nodes(num_nodes, [&](Rail& rail, int node) {
      uint64_t call = 0;
      for (const uint64_t bytes : {1UL, 777UL, 300'001UL})
        for (int step = 1; step < num_nodes; ++step)
          pass(rail, node, num_nodes, step, ++call, [&](int) { return bytes; });
      EXPECT_TRUE(rail.error().ok());
    });
}

// Blocks of nodes need not be equal, and who has nothing to say waits for nobody.
TEST_P(Rails, PassOtherLengthsEachWay) {
  GetParam().on_nodes(2, [&](Rail& rail, int node) {
    pass(rail, node, 2, 1, 1, [](int from) { return from == 0 ? 5000UL : 3UL; });
    pass(rail, node, 2, 1, 2, [](int from) { return from == 0 ? 0UL : 64UL; });
    pass(rail, node, 2, 1, 3, [](int) { return 0UL; });
  });
}

TEST_P(Rails, GatherInTheOrderOfNodes) {
  for (const int num_nodes : {2, 3})
    GetParam().on_nodes(num_nodes, [&](Rail& rail, int node) {
      for (const uint64_t bytes : {1UL, 8UL, 70'003UL}) {
        const auto own = bytes_of(node, bytes, bytes);
        std::vector<std::byte> all(bytes * static_cast<uint64_t>(num_nodes), std::byte{0xee});
        const Status status = rail.all_gather(at(own), at(all), bytes, {});
        ASSERT_TRUE(status.ok()) << status.to_string();
        for (int other = 0; other < num_nodes; ++other) {
          const auto* const place = all.data() + static_cast<uint64_t>(other) * bytes;
          EXPECT_EQ(std::memcmp(place, bytes_of(other, bytes, bytes).data(), bytes), 0);
        }
      }
    });
}

// NCCL's all_gather would connect the communicator a second time, with buffers of its own.
TEST(RailOfNccl, GathersBySendsAndReceives) {
  constexpr int kNodes = 3;
  num_collectives = 0;
  on_nccl(kNodes, [](Rail& rail, int node) {
    const std::vector<std::byte> own(64, static_cast<std::byte>(node + 1));
    std::vector<std::byte> all(64 * kNodes);
    const auto from = reinterpret_cast<sys::DevicePtr>(own.data());
    const auto to = reinterpret_cast<sys::DevicePtr>(all.data());
    ASSERT_TRUE(rail.all_gather(from, to, 64, {}).ok());
    for (size_t at = 0; at < all.size(); ++at)
      ASSERT_EQ(all[at], static_cast<std::byte>(at / 64 + 1)) << at;
  });
  EXPECT_EQ(num_collectives, kNodes) << "the programs' own, at which the core got its rails";
}

// What matches a send is the receive of the same call, however late a node comes to it.
TEST_P(Rails, CallsMeetInTheirOrder) {
  GetParam().on_nodes(2, [&](Rail& rail, int node) {
    std::minstd_rand lengths(3), naps(static_cast<unsigned>(node) + 1);
    for (uint64_t call = 0; call < 40; ++call) {
      const uint64_t bytes = 1 + lengths() % 5000;
      if (naps() % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pass(rail, node, 2, 1, call, [&](int) { return bytes; });
    }
  });
}

// A call that waits for a node that does not come ends when the rail is aborted, and so do later ones.
TEST_P(Rails, AnAbortEndsWhatWaits) {
  std::barrier<> all(2);
  GetParam().on_nodes(2, [&](Rail& rail, int node) {
    pass(rail, node, 2, 1, 1, [](int) { return 10UL; });
    all.arrive_and_wait();
    if (node == 0) {
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        rail.abort();
      });
      std::vector<std::byte> send(8), recv(8);
      const int64_t began_ns = now_ns();
      (void)rail.exchange({at(send), 8, 1, at(recv), 8, 1}, {});
      EXPECT_LT(now_ns() - began_ns, 10_s);
      aborter.join();
      EXPECT_FALSE(rail.exchange({at(send), 8, 1, at(recv), 8, 1}, {}).ok());
      EXPECT_FALSE(rail.all_gather(at(send), at(recv), 1, {}).ok());
    }
    all.arrive_and_wait();
    rail.abort();
    rail.abort();  // twice is fine
    std::vector<std::byte> send(8), recv(16);
    EXPECT_FALSE(rail.all_gather(at(send), at(recv), 8, {}).ok());
    EXPECT_FALSE(rail.error().ok());
  });
}

// ---- after a failure ----

/// A rail of the first of two nodes over these functions, in place of NCCL's.
void on_table(const braid_nccl_rails& table, const std::function<void(NcclRail&)>& body) {
  sys::FakeCuda cuda(1);
  test::define_team_kernels(cuda);
  test::run_gpus(1, cuda, {}, [&](test::GpuRank& gpu) {
    auto rail = NcclRail::make(table, std::string(kIdBytes, 'x'), {2, 1}, 0, gpu.device,
                               [] { return Status(); });
    ASSERT_TRUE(rail.ok()) << rail.status().to_string();
    body(**rail);
  });
}

/// NCCL refuses one call and would take all others.
struct RefusesOne {
  int num_calls = 0;
  braid_nccl_rails table{};

  explicit RefusesOne(int refused) {
    table.context = this;
    refused_ = refused;
    table.make = [](void*, const char*, int, int, void** comm) { return *comm = &refused_, 0; };
    table.exchange = [](void* context, void*, const braid_nccl_passage*, void*) {
      return answer(context);
    };
    table.all_gather = [](void* context, void*, const void*, void*, uint64_t, void*) {
      return answer(context);
    };
    table.error = [](void*, void*) { return 0; };
    table.abort = table.destroy = [](void*, void*) { return 0; };
  }

 private:
  static int answer(void* context) {
    return static_cast<RefusesOne*>(context)->num_calls++ == refused_ ? 2 : 0;
  }
  static inline int refused_ = 0;
};

// The other ranks may have had theirs: what they sent in it would come out of the next receive.
TEST(NcclRail, ACallThatWasRefusedIsTheLast) {
  RefusesOne library(1);
  on_table(library.table, [&](NcclRail& rail) {
    char bytes[8] = {};
    const auto at = reinterpret_cast<sys::DevicePtr>(bytes);
    const Passage passage{at, 4, 1, at + 4, 4, 1};
    EXPECT_TRUE(rail.exchange(passage, {}).ok());
    EXPECT_TRUE(rail.error().ok());
    EXPECT_EQ(rail.exchange(passage, {}).code(), Code::kDriver);
    EXPECT_FALSE(rail.exchange(passage, {}).ok());
    EXPECT_FALSE(rail.all_gather(at, at, 4, {}).ok());
    EXPECT_FALSE(rail.error().ok());
    EXPECT_EQ(library.num_calls, 2);
  });
}

/// A library whose exchange ends 2 ms after `is_to_end`, or not before it is aborted; notes whether it
/// was aborted under somebody's hands.
struct TakesLong {
  explicit TakesLong(bool is_stuck) : is_stuck_(is_stuck) {
    table.context = this;
    table.make = [](void* context, const char*, int, int, void** comm) {
      return *comm = context, 0;
    };
    table.exchange = [](void* context, void*, const braid_nccl_passage*, void*) {
      return static_cast<TakesLong*>(context)->exchange();
    };
    table.abort = [](void* context, void*) {
      auto& self = *static_cast<TakesLong*>(context);
      self.was_inside = !self.has_ended;
      self.is_freed = true;
      return 0;
    };
    table.error = table.destroy = [](void*, void*) { return 0; };
  }
  braid_nccl_rails table{};
  std::atomic<bool> has_begun{false}, is_to_end{false}, has_ended{false};
  std::atomic<bool> is_freed{false}, was_inside{false};

 private:
  int exchange() {
    has_begun = true;
    while (!(is_stuck_ ? is_freed : is_to_end)) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    has_ended = true;
    return 0;
  }
  const bool is_stuck_;
};

/// Whether the abort found somebody inside.
bool abort_amid_a_call(bool is_stuck) {
  TakesLong library(is_stuck);
  on_table(library.table, [&](NcclRail& rail) {
    std::thread caller([&] { (void)rail.exchange(Passage{}, {}); });
    while (!library.has_begun) std::this_thread::yield();
    library.is_to_end = true;
    rail.abort();
    EXPECT_TRUE(library.is_freed);
    caller.join();
    EXPECT_FALSE(rail.exchange(Passage{}, {}).ok());
  });
  return library.was_inside;
}

// An abort frees NCCL's communicator; another thread may be in a call with it, which the watch that
// aborts knows nothing of. Only who is stuck in there gets it freed under his hands: that is how he
// gets out. A busy machine may hold somebody in there for longer than the abort waits, not each time.
TEST(NcclRail, AnAbortWaitsForWhoIsInACallAndNotForWhoIsStuck) {
  int attempts = 0;
  while (abort_amid_a_call(false)) ASSERT_LT(++attempts, 10);
  EXPECT_TRUE(abort_amid_a_call(true));
}

/// A library that does not block: a call is over when error() has been asked so often.
struct GoesOn {
  explicit GoesOn(int num_times, int answer = 0) : left_(num_times), answer_(answer) {
    table.context = this;
    table.make = [](void* context, const char*, int, int, void** comm) {
      return *comm = context, 0;
    };
    table.exchange = [](void*, void*, const braid_nccl_passage*, void*) { return 7; };
    table.all_gather = [](void*, void*, const void*, void*, uint64_t, void*) { return 7; };
    table.error = [](void* context, void*) {
      auto& self = *static_cast<GoesOn*>(context);
      if (self.is_freed) ++self.num_asked_when_freed;
      ++self.num_asked;
      return self.left_-- > 0 ? 7 : self.answer_;
    };
    table.abort = [](void* context, void*) {
      static_cast<GoesOn*>(context)->is_freed = true;
      return 0;
    };
    table.destroy = [](void*, void*) { return 0; };
  }
  braid_nccl_rails table{};
  std::atomic<bool> is_freed{false};
  std::atomic<int> num_asked{0}, num_asked_when_freed{0};

 private:
  std::atomic<int> left_;
  const int answer_;
};

// NCCL_COMM_BLOCKING=0 is stronger than a rail's own configuration.
TEST(NcclRail, WaitsForALibraryThatDoesNotBlock) {
  GoesOn library(3);
  on_table(library.table, [&](NcclRail& rail) {
    const Status passed = rail.exchange(Passage{}, {});
    EXPECT_TRUE(passed.ok()) << passed.to_string();
    EXPECT_EQ(library.num_asked, 4);
    EXPECT_TRUE(rail.all_gather(0, 0, 0, {}).ok());
  });
  GoesOn refusing(2, 3);
  on_table(refusing.table, [&](NcclRail& rail) {
    EXPECT_EQ(rail.exchange(Passage{}, {}).code(), Code::kDriver);
    EXPECT_FALSE(rail.exchange(Passage{}, {}).ok())
        << "the last call, as one that was refused at once";
  });
}

// Who waited so asked a communicator that an abort beside him had freed, for up to a minute.
TEST(NcclRail, ARailThatIsAbortedIsAskedNothingMore) {
  GoesOn library(INT_MAX);
  on_table(library.table, [&](NcclRail& rail) {
    std::thread caller([&] { EXPECT_EQ(rail.exchange(Passage{}, {}).code(), Code::kUnavailable); });
    const Deadline patience = test::test_deadline();
    while (library.num_asked < 3 && !patience.passed()) std::this_thread::yield();
    rail.abort();
    EXPECT_TRUE(library.is_freed);
    caller.join();
  });
  EXPECT_EQ(library.num_asked_when_freed, 0);
}

// The shim's functions themselves wait for nothing, where nobody knows of an abort.
TEST(RailOfNccl, IsAskedNothingMoreWhenItIsAborted) {
  on_nccl(2, [](Rail& rail, int node) {
    if (node == 1) return;
    num_looks = 0;
    was_aborted = false;
    does_not_block = true;
    std::thread aborter([&] {
      const Deadline patience = test::test_deadline();
      while (num_looks < 3 && !patience.passed()) std::this_thread::yield();
      rail.abort();
    });
    EXPECT_FALSE(rail.exchange(Passage{}, {}).ok());
    aborter.join();
  });
  does_not_block = false;
  EXPECT_GE(num_looks, 3);
  EXPECT_EQ(num_looks_when_aborted, 0);
}

/// A send and a receive in one group, as rails do them.
void exchange_of(programs::NcclOfThreads& library, int rank, NcclComm comm, std::string& memory,
                 sys::Stream stream) {
  const size_t half = memory.size() / 2;
  Call call;
  call.count = half;
  call.dtype = static_cast<int>(Dtype::kUint8);
  call.root = 1 - rank;
  call.comm = comm;
  call.stream = stream.handle;
  EXPECT_EQ(library.begin_group(rank), NcclResult::kSuccess);
  call.op = Op::kSend;
  call.send = memory.data();
  EXPECT_EQ(library.submit(rank, call), NcclResult::kSuccess);
  call.op = Op::kRecv;
  call.recv = memory.data() + half;
  EXPECT_EQ(library.submit(rank, call), NcclResult::kSuccess);
  EXPECT_EQ(library.end_group(rank), NcclResult::kSuccess);
}

// The library's own: a rank that is stuck in the first exchange of a graph and aborts goes on to the
// second one, and must not be given what the other sent it in the first.
TEST(NcclOfThreads, WhoHasAbortedTakesNothing) {
  test::GraphCuda machines[] = {test::GraphCuda(1), test::GraphCuda(1)};
  programs::NcclOfThreads library({{&machines[0], 0}, {&machines[1], 0}});
  UniqueId id{};
  ASSERT_EQ(library.make_id(0, &id), NcclResult::kSuccess);
  NcclComm comms[2] = {};
  on_threads(2, [&](int rank) {
    EXPECT_EQ(library.make(rank, &comms[rank], 2, id, rank), NcclResult::kSuccess);
  });
  std::string theirs(2 * 154, 'a'), first(2 * 154, 'b'), second(2 * 346, 'b');
  std::atomic<bool> has_sent{false};
  library.fail_at(1, library.num_calls(1) + 2, programs::Failure::kSilent);
  on_threads(2, [&](int rank) {
    test::GraphCuda& machine = machines[rank];
    const auto scope = sys::CurrentDevice::use(machine, 0);
    const sys::Stream stream = machine.create_stream(sys::StreamPriority::kNormal).value();
    if (rank == 0) {
      has_sent = true;
      exchange_of(library, 0, comms[0], theirs, stream);  // until it aborts
    } else {
      machine.begin_capture(stream);
      exchange_of(library, 1, comms[1], first, stream);
      exchange_of(library, 1, comms[1], second, stream);
      const test::Graph graph = machine.end_capture(stream);
      while (!has_sent) std::this_thread::yield();
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_EQ(library.abort(comms[1]), NcclResult::kSuccess);
      });
      EXPECT_TRUE(test::GraphCuda::replay(graph).ok());
      aborter.join();
      EXPECT_EQ(second, std::string(2 * 346, 'b'));
      EXPECT_EQ(library.abort(comms[0]), NcclResult::kSuccess);
    }
    EXPECT_TRUE(machine.destroy_stream(stream).ok());
  });
}

// The list: who adds a rail adds a line.
const Kind kKinds[] = {
    {"Threads", [](int num, const Body& body) { on_fakes(num, 0, body); }},
    {"LateThreads", [](int num, const Body& body) { on_fakes(num, 7, body); }},
    {"Nccl", on_nccl},
    {"HostLanesOverTcp", on_lanes},
};
INSTANTIATE_TEST_SUITE_P(All, Rails, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace braid::nccl::rails_suite
