// The Device of every rank on one FakeCuda: making and unmaking, barriers, the host ring,
// registered memory, and what becomes of failures.
#include "comm/device/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "support/gpu_ranks.h"
#include "support/segmented_memory.h"

namespace braid::comm {
namespace {

using test::GpuRank;
using test::GuardedMemory;
using test::run_gpus;

constexpr uint64_t kPacketBytes = 256;

std::unique_ptr<sys::FakeCuda> make_cuda(int size) {
  auto cuda = std::make_unique<sys::FakeCuda>(size);
  test::define_team_kernels(*cuda);
  return cuda;
}

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.to_string(); }

/// The trouble that the watch finds, which looks every millisecond.
Status await_trouble(const Device& device) {
  const Deadline deadline = Deadline::after_ns(10'000'000'000);
  while (device.faults().status().ok() && !deadline.passed()) std::this_thread::yield();
  return device.faults().status();
}

class DeviceRanks : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  void TearDown() override { EXPECT_EQ(cuda_->alive(), sys::FakeCudaCounts{}); }
  std::unique_ptr<sys::FakeCuda> cuda_ = make_cuda(GetParam());
};

TEST_P(DeviceRanks, BarrierShowsWhatPeersWroteBefore) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    Device& device = rank.device;
    const sys::OwnedStream stream =
        sys::own<sys::OwnedStream>(*cuda_, cuda_->create_stream(sys::StreamPriority::kNormal))
            .value();
    for (int round = 0; round < 20; ++round) {
      const auto value = [&](int r) { return static_cast<uint8_t>(16 * round + r + 1); };
      for (int peer = 0; peer < rank.size(); ++peer)
        expect_ok(
            cuda_->fill(device.arena().scratch().at(peer) + static_cast<uint64_t>(rank.rank()),
                        value(rank.rank()), 1, stream.get()));
      expect_ok(device.barriers().all(stream.get(), 3, 77));
      for (int peer = 0; peer < rank.size(); ++peer) {
        std::byte got{};
        expect_ok(
            cuda_->copy(reinterpret_cast<sys::DevicePtr>(&got),
                        device.arena().scratch().at(rank.rank()) + static_cast<uint64_t>(peer), 1,
                        stream.get()));
        EXPECT_EQ(static_cast<uint8_t>(got), value(peer));
      }
      expect_ok(device.barriers().all(stream.get(), 5, 78));
    }
    expect_ok(device.faults().status());
  });
}

// Rank 0 writes into everyone's scratch and tells, many times, without ever hearing from them.
TEST_P(DeviceRanks, StepShowsWhatTheTellerWroteBefore) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    Device& device = rank.device;
    for (uint64_t step = 0; step < 50; ++step) {
      for (int peer = 0; rank.rank() == 0 && peer < rank.size(); ++peer)
        expect_ok(cuda_->fill(device.arena().scratch().at(peer) + step, 7, 1, {}));
      expect_ok(device.barriers().step({}, 2, 0));
      std::byte got{};
      expect_ok(cuda_->copy(reinterpret_cast<sys::DevicePtr>(&got),
                            device.arena().scratch().at(rank.rank()) + step, 1, {}));
      EXPECT_EQ(static_cast<int>(got), 7);
    }
    expect_ok(device.faults().status());
  });
}

// Every pair meets as often as the sum of its ranks says, and sees what the other wrote before.
TEST_P(DeviceRanks, PairsMeetAsOftenAsTheyLike) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    Device& device = rank.device;
    const auto times = [&](int peer) { return 3 * (rank.rank() + peer) % 5; };
    for (int round = 0; round < 5; ++round) {
      uint32_t with = 0;
      for (int peer = 0; peer < rank.size(); ++peer) {
        if (peer == rank.rank() || times(peer) <= round) continue;
        with |= 1U << peer;
        const auto value = static_cast<uint8_t>(10 * rank.rank() + round + 1);
        expect_ok(cuda_->fill(
            device.arena().scratch().at(peer) + static_cast<uint64_t>(8 * rank.rank() + round),
            value, 1, {}));
      }
      expect_ok(device.barriers().pairs({}, with));
      for (int peer = 0; peer < rank.size(); ++peer) {
        if ((with >> peer & 1U) == 0) continue;
        std::byte got{};
        expect_ok(cuda_->copy(
            reinterpret_cast<sys::DevicePtr>(&got),
            device.arena().scratch().at(rank.rank()) + static_cast<uint64_t>(8 * peer + round), 1,
            {}));
        EXPECT_EQ(static_cast<int>(got), 10 * peer + round + 1);
      }
    }
    expect_ok(device.faults().status());
  });
}

// A rank that closed without the others must not give back what their kernels may still write to.
TEST(DeviceMemory, StaysWhereAThreadMayStillWrite) {
  constexpr int kSize = 2;
  const auto cuda = make_cuda(kSize);
  run_gpus(kSize, *cuda, {}, [&](GpuRank& rank) {
    const int me = rank.rank();
    const sys::DevicePtr of_rank_0 = rank.device.arena().scratch().at(0);
    rank.all.arrive_and_wait();
    if (me == 0) {
      rank.comm.abort("on purpose");  // all are told, and nobody has to come
      rank.comm.state().fatal = rank.comm.state().group->fate();
      expect_ok(rank.comm.close(false));
    }
    rank.all.arrive_and_wait();
    if (me == 1) expect_ok(cuda->fill(of_rank_0, 1, 8, {}));
  });
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});  // the last to go has freed it
}

// More bytes than the ring's slots hold, for everyone and for each rank alone, twice.
TEST_P(DeviceRanks, HostRingCarriesAnyLength) {
  const test::Options options = {{"BRAID_GPU_SLOT", "4KiB"}, {"BRAID_GPU_SLOTS", "2"}};
  run_gpus(size(), *cuda_, options, [&](GpuRank& rank) {
    Device& device = rank.device;
    for (const uint64_t bytes : {1ul, 15ul, 100ul, 4096ul, 300'001ul}) {
      GuardedMemory source(*cuda_, bytes, 3);
      const auto byte_of = [&](int r, uint64_t i) {
        return static_cast<std::byte>(i * 7 + i / 251 + 31 * static_cast<uint64_t>(r) + bytes);
      };
      for (uint64_t i = 0; i < bytes; ++i) source.data()[i] = byte_of(rank.rank(), i);
      std::vector<std::unique_ptr<GuardedMemory>> places;
      for (int r = 0; r < size(); ++r)
        places.push_back(std::make_unique<GuardedMemory>(*cuda_, bytes, 1));
      const auto pointer = [](sys::DevicePtr p) { return reinterpret_cast<std::byte*>(p); };
      LinkPart part;
      part.agreed_flows = size();
      for (const int key : {size(), rank.rank()}) {
        const bool is_for_all = key == size();
        part.num_flows = 0;
        if (is_for_all && size() > 1)
          part.add({rank.rank(), key, pointer(source.get()), nullptr, bytes});
        for (int r = 0; r < size(); ++r) {
          if (r == rank.rank()) continue;
          if (!is_for_all) part.add({rank.rank(), r, pointer(source.get()), nullptr, bytes});
          part.add({r, key, nullptr, pointer(places[static_cast<size_t>(r)]->get()), bytes});
        }
        expect_ok(device.links().main().enqueue(part, device.links().main().stream()));
        for (int r = 0; r < size(); ++r) {
          GuardedMemory& place = *places[static_cast<size_t>(r)];
          EXPECT_TRUE(place.is_guarded());
          if (r == rank.rank()) continue;
          uint64_t wrong = 0;
          for (uint64_t i = 0; i < bytes; ++i) wrong += place.data()[i] != byte_of(r, i);
          EXPECT_EQ(wrong, 0u) << bytes << " bytes of rank " << r << " key " << key;
          std::memset(place.data(), 0, bytes);
        }
      }
    }
    expect_ok(device.faults().status());
  });
}

TEST_P(DeviceRanks, RegisteredMemoryIsFoundWhereItLies) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    Device& device = rank.device;
    GuardedMemory memory(*cuda_, 10'000, 16);
    const sys::DevicePtr base = memory.get();
    EXPECT_EQ(device.registrations().find(base, 10'000).value().window, nullptr);
    expect_ok(device.registrations().add(base, 10'000));
    const SymmetricAddress landing = device.registrations().find(base + 100, 9'900).value();
    ASSERT_NE(landing.window, nullptr);
    EXPECT_EQ(landing.at(rank.rank()), base + 100);
    EXPECT_EQ(device.registrations().find(base + 100, 9'901).value().window, nullptr);
    EXPECT_EQ(device.registrations().find(base - 1, 2).value().window, nullptr);
    EXPECT_EQ(device.registrations().add(base, 10'000).code(), Code::kInvalidArgument);
    expect_ok(device.registrations().remove(base));
    EXPECT_EQ(device.registrations().find(base, 1).value().window, nullptr);
    EXPECT_EQ(device.registrations().remove(base).code(), Code::kInvalidArgument);
  });
}

// An empty buffer right behind registered memory belongs to nobody, whoever has the address.
// One span in two registrations would be found in one of them here and in the other one there.
TEST_P(DeviceRanks, RegistrationsDoNotOverlap) {
  run_gpus(GetParam(), *cuda_, {}, [&](GpuRank& rank) {
    const GuardedMemory memory(*cuda_, 8192);
    const sys::DevicePtr at = memory.get();
    expect_ok(rank.device.registrations().add(at + 1024, 1024));
    const std::pair<uint64_t, uint64_t> spans[] = {{0, 8192},  {1024, 1024}, {1024, 1},
                                                   {1500, 10}, {2047, 1024}, {0, 1025}};
    for (const auto& [begin, bytes] : spans)
      EXPECT_EQ(rank.device.registrations().add(at + begin, bytes).code(), Code::kInvalidArgument)
          << begin << ", " << bytes;
    expect_ok(rank.device.registrations().add(at, 1024));
    expect_ok(rank.device.registrations().add(at + 2048, 1024));
    EXPECT_EQ(rank.device.registrations().find(at + 1024, 1024)->number, 1U);
    EXPECT_EQ(rank.device.registrations().find(at + 2048, 1024)->number, 3U);
    expect_ok(rank.device.registrations().remove(at + 1024));
    expect_ok(rank.device.registrations().add(at + 1024, 512));
    EXPECT_EQ(rank.device.registrations().find(at + 1024, 512)->number, 4U);
    for (const uint64_t begin : {uint64_t{0}, uint64_t{1024}, uint64_t{2048}})
      expect_ok(rank.device.registrations().remove(at + begin));
  });
}

TEST_P(DeviceRanks, EmptyBufferBehindRegisteredMemory) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    const sys::DeviceMemory memory =
        sys::own<sys::DeviceMemory>(*cuda_, cuda_->alloc(4096)).value();
    expect_ok(rank.device.registrations().add(memory.get(), 4096));
    const auto landing = rank.device.registrations().find(memory.get() + 4096, 0);
    expect_ok(landing.status());
    expect_ok(rank.device.registrations().remove(memory.get()));
  });
}

TEST_P(DeviceRanks, FreedMemoryIsRefused) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    const sys::DevicePtr base = cuda_->alloc(4096).value();
    expect_ok(rank.device.registrations().add(base, 4096));
    expect_ok(cuda_->free(base));
    const sys::DevicePtr next = cuda_->alloc(4096).value();  // perhaps at the same address
    EXPECT_EQ(rank.device.registrations().find(base, 100).status().code(), Code::kInvalidArgument);
    expect_ok(rank.device.registrations().remove(base));
    EXPECT_EQ(rank.device.registrations().find(next, 100).value().window, nullptr);
    expect_ok(cuda_->free(next));
  });
}

// Torch unmaps segments and maps others at their addresses. Peers still hold the old ones, so
// results must not go there.
TEST_P(DeviceRanks, MemoryThatIsMappedAnewIsNotFound) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    test::SegmentedMemory memory(*cuda_, rank.rank(), {1, 1, 1});
    const sys::DevicePtr base = memory.get();
    const uint64_t second = memory.bytes_of(0);
    expect_ok(rank.device.registrations().add(base, memory.bytes()));
    const SymmetricAddress landing = rank.device.registrations().find(base + second, 100).value();
    ASSERT_NE(landing.window, nullptr);
    EXPECT_EQ(landing.at(rank.rank()), base + second);
    memory.remap(1);
    EXPECT_EQ(rank.device.registrations().find(base + second, 100).value().window, nullptr);
    EXPECT_EQ(rank.device.registrations().find(base, memory.bytes()).value().window, nullptr);
    EXPECT_NE(rank.device.registrations().find(base, second).value().window, nullptr);
    EXPECT_NE(rank.comm.health_json().find("was unmapped since"), std::string::npos);
    expect_ok(rank.device.registrations().remove(base));
    expect_ok(rank.device.registrations().add(base, memory.bytes()));
    EXPECT_NE(rank.device.registrations().find(base, memory.bytes()).value().window, nullptr);
    rank.all.arrive_and_wait();
    expect_ok(rank.device.registrations().remove(base));
  });
}

// Whoever calls may call from another thread the next time, where no context is current.
TEST_P(DeviceRanks, UnregistersFromAnotherThread) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    GuardedMemory memory(*cuda_, 4096);
    expect_ok(rank.device.registrations().add(memory.get(), 4096));
    expect_ok(rank.device.begin({}));
    expect_ok(rank.device.end({}));
    std::thread([&] { expect_ok(rank.device.registrations().remove(memory.get())); }).join();
  });
}

TEST_P(DeviceRanks, RegisteringFailsOnAllOrNone) {
  run_gpus(size(), *cuda_, {}, [&](GpuRank& rank) {
    GuardedMemory memory(*cuda_, 4096);
    const uint64_t bytes = rank.rank() == size() - 1 && size() > 1 ? 4000 : 4096;
    const Status differ = rank.device.registrations().add(memory.get(), bytes);
    EXPECT_EQ(differ.code(), size() > 1 ? Code::kInvalidArgument : Code::kOk);
    if (size() == 1) expect_ok(rank.device.registrations().remove(memory.get()));
    const bool is_mine = rank.rank() == 0;
    std::byte on_stack[64];
    const Status foreign = rank.device.registrations().add(
        is_mine ? reinterpret_cast<sys::DevicePtr>(on_stack) : memory.get(), 64);
    EXPECT_EQ(foreign.code(), Code::kUnsupported) << foreign.to_string();
    expect_ok(rank.device.registrations().add(memory.get(), 4096));  // the group is still in step
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceRanks, testing::Values(1, 2, 3, 4));

TEST(DeviceTrouble, DifferentSignaturesAreTroubleEverywhere) {
  const auto cuda = make_cuda(3);
  std::atomic<int> num_told{0};
  run_gpus(3, *cuda, {}, [&](GpuRank& rank) {
    expect_ok(rank.device.barriers().all({}, 0, 5));
    expect_ok(rank.device.barriers().all({}, 0, rank.rank() == 1 ? 6 : 5));
    const Status trouble = await_trouble(rank.device);
    num_told += trouble.code() == Code::kInvalidArgument;
    EXPECT_FALSE(trouble.ok());
    EXPECT_NE(trouble.message().find("different collectives"), std::string::npos)
        << trouble.to_string();
    EXPECT_FALSE(rank.device.begin({}).ok());
  });
  EXPECT_GE(num_told, 1);
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
}

TEST(DeviceTrouble, APairThatDiffersIsTroubleEverywhere) {
  const auto cuda = make_cuda(3);
  run_gpus(3, *cuda, {}, [&](GpuRank& rank) {
    nvlink::PairSignatures meant{};
    for (int peer = 0; peer < 3; ++peer)
      meant.signature[peer] = static_cast<uint64_t>(rank.rank() + peer);
    expect_ok(rank.device.barriers().of_pairs({}, 0, meant));
    expect_ok(rank.device.faults().status());
    rank.all.arrive_and_wait();
    if (rank.rank() == 1) meant.signature[2] = 77;
    expect_ok(rank.device.barriers().of_pairs({}, 0, meant));
    const Status trouble = await_trouble(rank.device);
    EXPECT_EQ(trouble.code(), Code::kInvalidArgument) << trouble.to_string();
    EXPECT_NE(trouble.message().find("rank 1"), std::string::npos) << trouble.to_string();
    EXPECT_NE(trouble.message().find("rank 2"), std::string::npos) << trouble.to_string();
  });
}

TEST(DeviceTrouble, ARankThatNeverComesIsNamed) {
  constexpr int kAbsent = 1;
  const auto cuda = make_cuda(3);
  run_gpus(3, *cuda, {{"BRAID_TIMEOUT", "1s"}}, [&](GpuRank& rank) {
    expect_ok(rank.device.barriers().all({}, 0, 5));
    const int64_t start_ns = now_ns();
    if (rank.rank() != kAbsent) {
      expect_ok(rank.device.barriers().all({}, 0, 6));
      EXPECT_LT(now_ns() - start_ns, 6'000'000'000);
    }
    const Status trouble = await_trouble(rank.device);
    EXPECT_EQ(trouble.code(), Code::kTimeout) << trouble.to_string();
    EXPECT_NE(trouble.message().find("waited for rank 1: barrier: expected 2, seen 1"),
              std::string::npos)
        << trouble.to_string();
  });
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
}

TEST(DeviceTrouble, ASilentSenderOfTheHostRingIsNamed) {
  const auto cuda = make_cuda(2);
  run_gpus(2, *cuda, {{"BRAID_TIMEOUT", "1s"}}, [&](GpuRank& rank) {
    GuardedMemory memory(*cuda, 1000);
    LinkPart part;
    part.add({1, 0, nullptr, memory.data(), 1000});
    part.agreed_flows = LinkPart::kMostFlows;  // one block each
    if (rank.rank() == 0)
      expect_ok(rank.device.links().main().enqueue(part, rank.device.links().main().stream()));
    const Status trouble = await_trouble(rank.device);
    EXPECT_NE(trouble.message().find("waited for rank 1: full slot"), std::string::npos)
        << trouble.to_string();
  });
}

// What one rank reports ends the waits of all others, long before their deadline.
TEST(DeviceTrouble, AReportEndsTheWaits) {
  const auto cuda = make_cuda(2);
  run_gpus(2, *cuda, {}, [&](GpuRank& rank) {
    const int64_t start_ns = now_ns();
    if (rank.rank() == 0)
      rank.comm.state().group->report(driver_error("the GPU fell off the bus"));
    else
      expect_ok(rank.device.barriers().all({}, 0, 1));
    EXPECT_NE(await_trouble(rank.device).message().find("fell off"), std::string::npos);
    EXPECT_LT(now_ns() - start_ns, 10'000'000'000);
  });
}

// It was told by a thread that did not know its rank.
TEST(DeviceTrouble, IsLoggedWithTheRankThatFoundIt) {
  const auto cuda = make_cuda(2);
  testing::internal::CaptureStderr();
  run_gpus(2, *cuda, {}, [&](GpuRank& rank) {
    rank.all.arrive_and_wait();
    log::configure("comm:error");
    rank.all.arrive_and_wait();
    if (rank.rank() == 0) rank.comm.state().group->report(driver_error("the GPU fell off the bus"));
    EXPECT_FALSE(await_trouble(rank.device).ok());
    rank.all.arrive_and_wait();
    log::configure("off");
  });
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("braid rank 0 comm error: gpu 0: "), std::string::npos) << lines;
  EXPECT_NE(lines.find("braid rank 1 comm error: gpu 1: "), std::string::npos) << lines;
}

// One rank's waits end by its own word; the other goes on waiting for it.
TEST(DeviceTrouble, ARankEndsItsOwnWaits) {
  const auto cuda = make_cuda(2);
  run_gpus(2, *cuda, {{"BRAID_TIMEOUT", "15s"}}, [&](GpuRank& rank) {
    if (rank.rank() == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        rank.device.faults().end_waits();
        rank.device.faults().end_waits();
      });
      const auto scope = sys::CurrentDevice::use(*cuda, 0);
      const int64_t start_ns = now_ns();
      expect_ok(rank.device.barriers().all({}, 0, 1));
      EXPECT_LT(now_ns() - start_ns, 10'000'000'000);
      other.join();
    }
    rank.all.arrive_and_wait();
    EXPECT_FALSE(rank.comm.state().group->broken());
  });
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
}

struct Fault {
  const char* method;
  uint64_t most;  // tried: every call up to here
};

void PrintTo(const Fault& fault, std::ostream* os) { *os << fault.method; }

/// Call n of a method fails while the Devices are made, for every n until none is left.
class DeviceFaults : public testing::TestWithParam<Fault> {};

TEST_P(DeviceFaults, EveryRankGetsTheSameVerdict) {
  constexpr int kSize = 3;
  const auto cuda = make_cuda(kSize);
  std::vector<std::string> verdicts(kSize);
  std::atomic<uint64_t> num_failed{0};
  test::run_gpu_comms(kSize, {}, [&](Comm& comm, std::barrier<>& all) {
    for (uint64_t n = 0; n <= GetParam().most; ++n) {
      if (comm.rank() == 0) cuda->fail(GetParam().method, n, driver_error("call {} broke", n));
      all.arrive_and_wait();
      auto made = Device::create(comm.state(), *cuda,
                                 {comm.rank(), {0, {{"packets", kPacketBytes, kPacketBytes}}}});
      verdicts[static_cast<size_t>(comm.rank())] = made.status().to_string();
      all.arrive_and_wait();
      if (comm.rank() == 0) {
        EXPECT_EQ(verdicts[1], verdicts[0]);
        EXPECT_EQ(verdicts[2], verdicts[0]);
        if (verdicts[0] != "ok") {
          EXPECT_NE(verdicts[0].find(fmt::format("call {} broke", n)), std::string::npos)
              << verdicts[0];
          nvlink::await_frees();
          EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
          ++num_failed;
        }
      }
      const bool is_last = verdicts[0] == "ok";
      all.arrive_and_wait();  // nobody has a Device any longer, or everybody detaches
      if (made.ok()) made.value()->detach(true);
      all.arrive_and_wait();
      if (made.ok()) made.value().reset();
      if (is_last) break;
    }
    EXPECT_FALSE(comm.state().group->broken());
  });
  EXPECT_GE(num_failed, static_cast<uint64_t>(kSize));
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
}

INSTANTIATE_TEST_SUITE_P(Making, DeviceFaults,
                         testing::Values(Fault{"use_device", 2}, Fault{"load_module", 3},
                                         Fault{"kernel", 5}, Fault{"alloc", 50},
                                         Fault{"register_host", 50}, Fault{"fill", 8},
                                         Fault{"synchronize", 2}, Fault{"pointer_facts", 2},
                                         Fault{"address_range", 2}, Fault{"export_ipc", 50},
                                         Fault{"enable_peer_access", 50},
                                         Fault{"create_stream", 50}, Fault{"create_event", 3}),
                         [](const auto& chosen) { return chosen.param.method; });

// ---- options ----

/// Every rank's verdict on making a Device with options of its own.
std::vector<Status> make_with(const std::vector<test::Options>& options_of_rank) {
  const auto size = static_cast<int>(options_of_rank.size());
  const auto cuda = make_cuda(size);
  std::vector<Status> verdicts(options_of_rank.size());
  test::run_gpu_comms(size, {}, [&](Comm& comm, std::barrier<>& all) {
    const auto index = static_cast<size_t>(comm.rank());
    comm.state().config = test::make_config(test::gpu_options(options_of_rank[index]));
    auto made = Device::create(comm.state(), *cuda,
                               {comm.rank(), {0, {{"packets", kPacketBytes, kPacketBytes}}}});
    verdicts[index] = made.status();
    all.arrive_and_wait();
    if (made.ok()) made.value()->detach(true);
    all.arrive_and_wait();
  });
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
  return verdicts;
}

using Choices = std::vector<std::pair<std::string, std::string>>;

TEST(DeviceOptions, WrongOnesAreRefusedOnEveryRank) {
  for (const auto& [name, value] : Choices{{"BRAID_GPU_SCRATCH", "15MiB"},
                                           {"BRAID_GPU_LANES", "9"},
                                           {"BRAID_GPU_SLOT", "64"},
                                           {"BRAID_GPU_SLOT", "8GiB"},
                                           {"BRAID_GPU_SLOTS", "0"},
                                           {"BRAID_GPU_SLOTS", "99999"},
                                           {"BRAID_GPU_RING", "blocks"},
                                           {"BRAID_GPU_RDMA", "maybe"},
                                           {"BRAID_GPU_RDMA_SHARE", "101"},
                                           {"BRAID_LINK_CAP", "147"},
                                           {"BRAID_LINK_CAP", "pcie:20"},
                                           {"BRAID_LINK_CAP", "nvlink:0"},
                                           {"BRAID_LINK_CAP", "nvlink:fast"}})
    for (const Status& verdict : make_with({{{name, value}}, {{name, value}}})) {
      EXPECT_EQ(verdict.code(), Code::kInvalidArgument) << name << ": " << verdict.to_string();
      EXPECT_NE(verdict.message().find(name), std::string::npos) << verdict.to_string();
    }
}

TEST(DeviceOptions, DifferentOnesAreRefusedOnEveryRank) {
  for (const auto& [name, value] : Choices{{"BRAID_GPU_SCRATCH", "18MiB"},
                                           {"BRAID_GPU_LANES", "3"},
                                           {"BRAID_GPU_SLOT", "32KiB"},
                                           {"BRAID_GPU_SLOTS", "3"},
                                           {"BRAID_GPU_SUM_BLOCKS", "16"},
                                           {"BRAID_GPU_RDMA", "auto"},
                                           {"BRAID_GPU_RDMA_SHARE", "7"},
                                           {"BRAID_RDMA_PROVIDER", "shm"},
                                           {"BRAID_LINK_CAP", "nvlink:147"}})
    for (const Status& verdict : make_with({{}, {{name, value}}}))
      EXPECT_EQ(verdict.code(), Code::kInvalidArgument) << name << ": " << verdict.to_string();
}

// A ring's two sides may move their lanes differently, as long as they have as many.
TEST(DeviceOptions, RingsOfAnyEngineMeetWhereLanesAreAskedFor) {
  const test::Options bulk = {{"BRAID_GPU_LANES", "3"}};
  const test::Options threads = {{"BRAID_GPU_LANES", "3"}, {"BRAID_GPU_RING", "threads"}};
  for (const Status& verdict : make_with({bulk, threads}))
    EXPECT_TRUE(verdict.ok()) << verdict.to_string();
  for (const Status& verdict : make_with({{}, {{"BRAID_GPU_RING", "threads"}}}))
    EXPECT_EQ(verdict.code(), Code::kInvalidArgument) << verdict.to_string();
}

}  // namespace
}  // namespace braid::comm
