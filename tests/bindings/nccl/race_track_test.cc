// Races on fake GPUs, whose events tell modelled times, against an NCCL that takes what the test
// says: what is measured, what all ranks make of it, and what is kept.
#include "bindings/nccl/core/race_track.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/sanitizer.h"
#include "base/units.h"
#include "bindings/nccl/core/hold_race.h"
#include "bindings/nccl/core/race_cache.h"
#include "bindings/nccl/core/seat.h"
#include "coll/device/collectives.h"
#include "support/gpu_ranks.h"
#include "support/timed_cuda.h"
#include "sys/host/api.h"
#include "sys/host/file.h"

namespace braid::nccl {
namespace {

namespace fs = std::filesystem;
using test::GpuRank;
using test::Options;

constexpr int kRanks = 2;

/// One without room for the large sizes, as this machine has none.
class SmallCuda : public test::TimedCuda {
 public:
  using TimedCuda::TimedCuda;
  Result<sys::DevicePtr> alloc(uint64_t bytes) override {
    // Nothing else is of these sizes.
    if (bytes == 8_MiB || bytes == 32_MiB || bytes == 128_MiB || bytes == 512_MiB)
      return exhausted("{} bytes of a fake GPU", bytes);
    return TimedCuda::alloc(bytes);
  }
};
constexpr uint32_t kAllSmall = 31;  // up to 2 MiB

/// What NCCL is, on one rank.
struct FakeNccl {
  SmallCuda* cuda = nullptr;
  double by_braid = 1, in_windows_by_braid = 1;  // its time
  double in_place_by_other = 1;                  // that in place, by that out of place
  int fails_from = 1 << 30;                      // calls
  int num_calls = 0, num_in_place = 0;
  std::function<void()> on_call;
  bool has_memory = true, has_use = true;  // for windows
  int window_answer = 0;
  std::function<void()> on_window;
  std::map<const void*, uint64_t> windows;  // bytes by their memory, which is their handle
  int num_opened = 0;

  bool is_in_windows(const void* memory) const {
    const auto next = windows.upper_bound(memory);
    if (next == windows.begin()) return false;
    const auto& [base, bytes] = *std::prev(next);
    return static_cast<const char*>(memory) < static_cast<const char*>(base) + bytes;
  }

  static int run(void* context, const braid_nccl_call* call) {
    FakeNccl& nccl = *static_cast<FakeNccl*>(context);
    if (nccl.on_call) nccl.on_call();
    if (nccl.num_calls++ >= nccl.fails_from) return 5;
    const auto* const end = static_cast<const char*>(call->recv) + call->count * 2 * kRanks;
    const bool is_in_place = call->send >= call->recv && call->send < end;
    if (is_in_place) ++nccl.num_in_place;
    EXPECT_EQ(nccl.is_in_windows(call->recv), nccl.is_in_windows(call->send));
    // An all_gather of two sends a rank's block over NVLink.
    const double braid_ns = static_cast<double>(call->count * 2) / 385;
    const double by_braid =
        (nccl.is_in_windows(call->recv) ? nccl.in_windows_by_braid : nccl.by_braid) *
        (is_in_place ? nccl.in_place_by_other : 1);
    nccl.cuda->spend({call->stream}, braid_ns * by_braid);
    return 0;
  }
  static int take_memory(void* context, uint64_t bytes, void** memory) {
    FakeNccl& nccl = *static_cast<FakeNccl*>(context);
    if (!nccl.has_memory || bytes >= 16_MiB) return 1;
    auto at = nccl.cuda->alloc(bytes);
    if (at.ok()) *memory = sys::pointer_to<void>(*at);
    return at.ok() ? 0 : 1;
  }
  static int give_memory_back(void* context, void* memory) {
    return static_cast<FakeNccl*>(context)->cuda->free(sys::address_of(memory)).ok() ? 0 : 1;
  }
  static int open_window(void* context, void* memory, uint64_t bytes, void** window) {
    FakeNccl& nccl = *static_cast<FakeNccl*>(context);
    ++nccl.num_opened;
    if (nccl.on_window) nccl.on_window();
    if (nccl.window_answer != 0) return nccl.window_answer;
    if (!nccl.has_use) return 0;
    nccl.windows[memory] = bytes;
    *window = memory;
    return 0;
  }
  static int close_window(void* context, void* window) {
    EXPECT_EQ(static_cast<FakeNccl*>(context)->windows.erase(window), 1U);
    return 0;
  }
  braid_nccl_real real(int version = 22809) {
    return {this, version, 0, run, take_memory, give_memory_back, open_window, close_window};
  }
};

struct FakeGpus {
  SmallCuda cuda{kRanks};
  std::array<FakeNccl, kRanks> nccls;
  std::array<RealCalls, kRanks> real_calls;
  FakeGpus() {
    test::define_team_kernels(cuda);
    for (int rank = 0; rank < kRanks; ++rank) nccls[static_cast<size_t>(rank)].cuda = &cuda;
  }
  void on_all(const std::function<void(GpuRank&, const Entrants&)>& body, int version = 22809) {
    // Kernels of fake GPUs wait on the host, where a rank that failed keeps the other one.
    test::run_gpus(kRanks, cuda, {{"BRAID_TIMEOUT", "3s"}}, [&](GpuRank& rank) {
      const auto i = static_cast<size_t>(rank.rank());
      body(rank, {rank.device, *rank.comm.state().group, real_calls[i], nccls[i].real(version),
                  BRAID_NCCL_ALL_GATHER, SizeRange::of(false)});
    });
    EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{}) << "nothing is left";
  }
};

/// What the ranks said.
struct Said {
  std::vector<Status> statuses;
  std::vector<braid_nccl_choice> choices;
  void add(const Status& status, const braid_nccl_choice& choice = {}) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    statuses.push_back(status);
    choices.push_back(choice);
  }
};

Said run_race(FakeGpus& gpus, int64_t patience_ns = 60_s) {
  Said said;
  gpus.on_all([&](GpuRank&, const Entrants& entrants) {
    RaceTrack track(entrants, Deadline::after_ns(60_s), patience_ns);
    ASSERT_TRUE(track.prepare().ok());
    EXPECT_EQ(track.sizes().num(), 5U) << "as much memory as there is";
    const auto outcome = race(track, 60_s, {});
    said.add(outcome.status(), outcome.ok() ? outcome->choice : braid_nccl_choice{});
  });
  return said;
}

TEST(RaceTrack, WhoIsFasterWins) {
  // Under a sanitizer one, and TheSlowestRankIsWhatCounts has the other verdict: a race takes seconds.
  for (const double ratio :
       kIsSanitized ? std::vector<double>{0.97} : std::vector<double>{0.5, 0.97, 1.0, 1.5}) {
    FakeGpus gpus;
    for (FakeNccl& nccl : gpus.nccls) nccl.by_braid = ratio;
    const Said said = run_race(gpus);
    ASSERT_EQ(said.statuses.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(said.statuses[i].ok()) << said.statuses[i].to_string();
      EXPECT_EQ(said.choices[i].measured, kAllSmall);
      EXPECT_EQ(said.choices[i].won & ~3U, ratio > 1 ? kAllSmall & ~3U : 0U) << ratio;
    }
    EXPECT_EQ(said.choices[0].won, said.choices[1].won);
  }
}

// A rank whose NCCL is slow is the slowest, and what all wait for.
TEST(RaceTrack, TheSlowestRankIsWhatCounts) {
  FakeGpus gpus;
  gpus.nccls[0].by_braid = 0.1;
  gpus.nccls[1].by_braid = 3;
  const Said said = run_race(gpus);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(said.choices[i].won & 16U, 16U);
}

TEST(RaceTrack, ACallThatNcclHasNotIsUnsupportedOnAllRanks) {
  FakeGpus gpus;
  for (FakeNccl& nccl : gpus.nccls) nccl.fails_from = 0;
  for (const Status& status : run_race(gpus).statuses)
    EXPECT_EQ(status.code(), Code::kUnsupported) << status.to_string();
}

// NCCL refused this rank while another one gave up waiting: the other's part of it may lie somewhere.
TEST(RaceTrack, ARefusalBesideAnotherFailureIsNoRefusal) {
  const auto codes = [](Code first, Code second) {
    return std::vector<std::vector<int64_t>>{{static_cast<int64_t>(first)},
                                             {static_cast<int64_t>(second)}};
  };
  const Status refused = unsupported("NCCL answered 5"), late = timeout("do not end");
  EXPECT_EQ(judge_codes(codes(Code::kTimeout, Code::kUnsupported), refused).code(),
            Code::kUnavailable);
  EXPECT_EQ(judge_codes(codes(Code::kTimeout, Code::kUnsupported), late).code(), Code::kTimeout);
  EXPECT_EQ(judge_codes(codes(Code::kOk, Code::kUnsupported), refused).code(), Code::kUnavailable);
  EXPECT_EQ(judge_codes(codes(Code::kOk, Code::kUnsupported), {}).code(), Code::kUnavailable);
  EXPECT_EQ(judge_codes(codes(Code::kUnsupported, Code::kUnsupported), refused).code(),
            Code::kUnsupported);
  EXPECT_TRUE(judge_codes(codes(Code::kOk, Code::kOk), {}).ok());
}

TEST(RaceTrack, AFailureOfOneRankEndsItOnAll) {
  for (const int call : {0, 1, 40}) {
    FakeGpus gpus;
    gpus.nccls[1].fails_from = call;
    const Said said = run_race(gpus, 300_ms);
    ASSERT_EQ(said.statuses.size(), 2U);
    for (const Status& status : said.statuses) {
      EXPECT_FALSE(status.ok()) << call;
      EXPECT_NE(status.code(), Code::kUnsupported) << "something of it may lie somewhere";
    }
  }
}

TEST(RaceTrack, CallsThatDoNotEndAreWaitedForOnlySoLong) {
  FakeGpus gpus;
  gpus.cuda.set_lateness(1 << 30);
  const int64_t began_ns = now_ns();
  Said said;
  test::run_gpus(kRanks, gpus.cuda, {}, [&](GpuRank& rank) {
    const auto i = static_cast<size_t>(rank.rank());
    RaceTrack track({rank.device, *rank.comm.state().group, gpus.real_calls[i],
                     gpus.nccls[i].real(), BRAID_NCCL_ALL_GATHER, SizeRange::of(false)},
                    Deadline::after_ns(60_s), 200_ms);
    ASSERT_TRUE(track.prepare().ok());
    said.add(track.run(0, 1, 0).status());
    gpus.cuda.let_come();
  });
  for (const Status& status : said.statuses) EXPECT_FALSE(status.ok());
  EXPECT_LT(now_ns() - began_ns, 20_s);
}

// Another thread breaks the communicator off: no call of NCCL's begins on it any longer.
TEST(RaceTrack, ACommunicatorThatIsBrokenOffIsLeftAlone) {
  FakeGpus gpus;
  std::atomic<bool> is_shut{false};
  gpus.nccls[0].on_call = [&] {
    if (gpus.nccls[0].num_calls == 20) {
      std::thread([&] {
        gpus.real_calls[0].shut();
        is_shut = true;
      }).detach();
      while (!gpus.real_calls[0].is_shut()) std::this_thread::yield();
    }
    EXPECT_FALSE(is_shut) << "a call began after the door was shut";
  };
  const Said said = run_race(gpus, 2_s);
  for (const Status& status : said.statuses) EXPECT_FALSE(status.ok());
  while (!is_shut) std::this_thread::yield();
}

// ---- over nodes ----

/// Of a call of braid's between nodes: how many have followed NCCL's last one, and how long the host has
/// called nothing, no barrier either: it goes over the same connections.
struct Behind {
  int number = 0;
  int64_t pause_ns = 0;
};
/// Braid's time by NCCL's.
using ByNccl = std::function<double(const Behind&)>;

/// What a rank's calls are behind.
class Traffic {
 public:
  void note_nccl() { number_ = 0, last_ns_ = now_ns(); }
  void note_barrier() { last_ns_ = now_ns(); }
  Behind note_braid() {
    const int64_t before_ns = std::exchange(last_ns_, now_ns());
    return {number_++, last_ns_ - before_ns};
  }

 private:
  int number_ = 0;
  int64_t last_ns_ = now_ns();
};

braid_nccl_choice race_over_nodes(const ByNccl& by_nccl) {
  constexpr double kTimesNvlink = 100;
  FakeGpus gpus;
  std::array<Traffic, kRanks> traffic;
  Said said;
  gpus.on_all([&](GpuRank& rank, Entrants entrants) {
    const auto i = static_cast<size_t>(rank.rank());
    gpus.nccls[i].by_braid = kTimesNvlink;
    gpus.nccls[i].on_call = [&] { traffic[i].note_nccl(); };
    const auto enqueue_ours = [&](const braid_nccl_call& call) {
      const double nccl_ns = kTimesNvlink * static_cast<double>(call.count * 2) / 385;
      gpus.cuda.spend({call.stream}, nccl_ns * by_nccl(traffic[i].note_braid()));
      return Status();
    };
    const auto meet = [&](sys::Stream stream) {
      traffic[i].note_barrier();
      return coll::device::barrier(rank.device, stream);
    };
    const OverNodes nodes{enqueue_ours, meet, "2 x 1"};
    entrants.nodes = &nodes;
    RaceTrack track(entrants, Deadline::after_ns(60_s), 60_s);
    ASSERT_TRUE(track.prepare().ok());
    const auto outcome = race(track, 60_s, {});
    said.add(outcome.status(), outcome.ok() ? outcome->choice : braid_nccl_choice{});
  });
  for (const Status& status : said.statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(said.choices.at(0).measured, kAllSmall);
  EXPECT_EQ(said.choices.at(0).won, said.choices.at(1).won);
  return said.choices[0];
}

// Eight H200 as two nodes: an all_gather of 8 MiB won in bursts, and in use, in turn with NCCL's calls, took twice
// as long as NCCL's, which may be the pauses or the other's traffic, at the first call behind it or at the second
// (docs/measured/nodes.md).
TEST(RaceOverNodes, WhatIsSlowBehindNcclsTrafficIsNccls) {
  for (const int slow : {0, 1}) {
    const auto by_nccl = [&](const Behind& behind) { return behind.number == slow ? 2.3 : 0.4; };
    EXPECT_EQ(race_over_nodes(by_nccl).won, 0U) << "call " << slow;
  }
}

// As slow in every second lap alone it would win.
TEST(RaceOverNodes, EveryLapOfSinglesIsBehindNcclsTraffic) {
  const auto by_nccl = [](const Behind& behind) { return behind.number == 0 ? 1.1 : 0.4; };
  EXPECT_EQ(race_over_nodes(by_nccl).won, 0U);
}

TEST(RaceOverNodes, WhatIsSlowBehindAPauseIsNccls) {
  const auto by_nccl = [](const Behind& behind) { return behind.pause_ns > 1'500'000 ? 2.3 : 0.4; };
  EXPECT_EQ(race_over_nodes(by_nccl).won, 0U);
}

// The same all_gather with races whose pauses were short: 0.61 of NCCL's speed in use.
TEST(RaceOverNodes, WhatIsSlowWhereConnectionsRestIsNccls) {
  const auto by_nccl = [](const Behind& behind) {
    return behind.pause_ns > 20'000'000 ? 1.6 : 0.3;
  };
  EXPECT_EQ(race_over_nodes(by_nccl).won, 0U);
}

TEST(RaceOverNodes, WhatIsSlowInBurstsIsNccls) {
  const auto by_nccl = [](const Behind& behind) { return behind.number < 2 ? 0.4 : 1.2; };
  EXPECT_EQ(race_over_nodes(by_nccl).won, 0U);
}

TEST(RaceOverNodes, WhatIsFasterInBothIsBraids) {
  const auto by_nccl = [](const Behind& behind) { return behind.number == 0 ? 0.5 : 0.4; };
  EXPECT_EQ(race_over_nodes(by_nccl).won, kAllSmall);
}

// ---- in windows ----

/// What the ranks made of a race in windows; with none of which anybody is through.
struct InWindows {
  Said said;
  std::array<size_t, kRanks> num_sizes{};
};

InWindows race_in_windows(FakeGpus& gpus, SizeRange sizes = SizeRange::of(false)) {
  InWindows all;
  gpus.on_all([&](GpuRank& rank, Entrants entrants) {
    entrants.in_windows = true;
    entrants.sizes = sizes;
    RaceTrack track(entrants, Deadline::after_ns(60_s), 2_s);
    const Status prepared = track.prepare();
    if (!prepared.ok()) return all.said.add(prepared);
    all.num_sizes[static_cast<size_t>(rank.rank())] = track.sizes().num();
    EXPECT_EQ(rank.device.registrations().summary().spans, track.sizes().num() > 0 ? 1U : 0U);
    const auto outcome = race(track, 60_s, {});
    if (outcome.ok()) {
      EXPECT_TRUE(track.finish().ok());
    }
    EXPECT_EQ(rank.device.registrations().summary().spans, outcome.ok() ? 0U : 1U);
    all.said.add(outcome.status(), outcome.ok() ? outcome->choice : braid_nccl_choice{});
  });
  return all;
}

void expect_no_windows(const FakeGpus& gpus) {
  for (const FakeNccl& nccl : gpus.nccls) EXPECT_TRUE(nccl.windows.empty());
}

TEST(RaceInWindows, NcclsTimeInWindowsIsWhatCounts) {
  const SizeRange largest{4, 6};  // of which there is no memory for the last
  for (const double there : {0.9, 1.5}) {
    FakeGpus gpus;
    for (FakeNccl& nccl : gpus.nccls) {
      nccl.by_braid = 2.4 - there;
      nccl.in_windows_by_braid = there;
    }
    const InWindows all = race_in_windows(gpus, largest);
    ASSERT_EQ(all.said.statuses.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(all.said.statuses[i].ok()) << all.said.statuses[i].to_string();
      EXPECT_EQ(all.said.choices[i].measured, 16U);
      EXPECT_EQ(all.said.choices[i].won, there > 1 ? 16U : 0U);
      EXPECT_EQ(gpus.nccls[i].num_opened, 1);
    }
    expect_no_windows(gpus);
    // In place comes first, and is lost; or both.
    for (const FakeNccl& nccl : gpus.nccls) {
      EXPECT_GT(nccl.num_in_place, 0);
      EXPECT_EQ(nccl.num_calls > nccl.num_in_place, there > 1);
    }
  }
}

// What is as fast in place and faster out of place is braid's, and the third heat is out of place; what is slower
// in place is not.
TEST(RaceInWindows, OnePlaceIsWonAndNoneLost) {
  for (const double in_place : {0.95, 1.02}) {
    FakeGpus gpus;
    for (FakeNccl& nccl : gpus.nccls) {
      nccl.in_windows_by_braid = 1.5;
      nccl.in_place_by_other = in_place / 1.5;
    }
    const InWindows all = race_in_windows(gpus, {4, 5});
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(all.said.choices.at(i).won, in_place > 1 ? 16U : 0U) << in_place;
      const int num_out_of_place = gpus.nccls[i].num_calls - gpus.nccls[i].num_in_place;
      EXPECT_GE(num_out_of_place, in_place > 1 ? 2 * 12 * calls_of_burst(4) : 0);
    }
  }
}

TEST(RaceInWindows, WithoutMemoryOnAnyRankNobodyComesToAWindow) {
  FakeGpus gpus;
  gpus.nccls[1].has_memory = false;
  const InWindows all = race_in_windows(gpus);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(all.said.statuses.at(i).ok()) << all.said.statuses[i].to_string();
    EXPECT_EQ(all.num_sizes[i], 0U);
    EXPECT_EQ(all.said.choices[i].measured, 0U) << "NCCL's";
    EXPECT_EQ(gpus.nccls[i].num_opened, 0) << "the other rank would wait in it";
  }
}

// On one rank or on all, by an error or by no handle: no rank races, and nothing is left of it.
TEST(RaceInWindows, WhereNcclOpensNoWindowThereIsNoRace) {
  const int64_t began_ns = now_ns();
  for (int kind = 0; kind < 4; ++kind) {
    FakeGpus gpus;
    gpus.nccls[1].window_answer = kind == 0 || kind == 1 ? 5 : 0;
    gpus.nccls[0].window_answer = kind == 1 ? 5 : 0;
    gpus.nccls[1].has_use = kind != 2 && kind != 3;
    gpus.nccls[0].has_use = kind != 3;
    const InWindows all = race_in_windows(gpus);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(all.said.statuses.at(i).ok()) << all.said.statuses[i].to_string();
      EXPECT_EQ(all.num_sizes[i], 0U) << kind;
      EXPECT_EQ(gpus.nccls[i].num_calls, 0);
    }
    expect_no_windows(gpus);
  }
  // A rank that has its window does not wait for one that has none, which takes 3 s each of two times.
  EXPECT_LT(now_ns() - began_ns, kIsSanitized ? 30_s : 5_s);
}

// Braid cannot map what a rank has: as if there were none.
TEST(RaceInWindows, WhereBraidMapsNoWindowThereIsNoRace) {
  FakeGpus gpus;
  gpus.nccls[1].on_window = [&] { gpus.cuda.fail("export_ipc", 0, driver_error("of no kind")); };
  const InWindows all = race_in_windows(gpus);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(all.said.statuses.at(i).ok()) << all.said.statuses[i].to_string();
    EXPECT_EQ(all.num_sizes[i], 0U);
  }
  expect_no_windows(gpus);
}

// It may yet write into the memory, which is not given back; and the other rank does not wait for it.
TEST(RaceInWindows, AWindowThatNcclDoesNotEndWithEndsItOnAll) {
  FakeGpus gpus;
  gpus.nccls[1].window_answer = 7;
  Said said;
  test::run_gpus(kRanks, gpus.cuda, {{"BRAID_TIMEOUT", "3s"}}, [&](GpuRank& rank) {
    const auto i = static_cast<size_t>(rank.rank());
    RaceTrack track({rank.device, *rank.comm.state().group, gpus.real_calls[i],
                     gpus.nccls[i].real(), BRAID_NCCL_ALL_GATHER, SizeRange::of(false), true},
                    Deadline::after_ns(60_s), 2_s);
    said.add(track.prepare());
  });
  EXPECT_EQ(said.statuses.size(), 2U);
  for (const Status& status : said.statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), Code::kUnsupported);
  }
  EXPECT_EQ(gpus.cuda.alive().memory, 1U) << "what NCCL may yet use";
  expect_no_windows(gpus);
}

// The program ends the communicator while a window is being made, or in the race: it is touched no
// more, and its windows end with it.
TEST(RaceInWindows, AnAbortEndsItOnAll) {
  for (const bool is_in_window : {true, false}) {
    FakeGpus gpus;
    const auto abort = [&] { std::thread([&] { gpus.real_calls[0].shut(); }).join(); };
    if (is_in_window) gpus.nccls[0].on_window = abort;
    if (!is_in_window)
      gpus.nccls[0].on_call = [&] {
        if (gpus.nccls[0].num_calls == 20) abort();
      };
    const InWindows all = race_in_windows(gpus);
    for (const Status& status : all.said.statuses) EXPECT_FALSE(status.ok());
    EXPECT_EQ(gpus.nccls[0].windows.size(), 1U) << "nobody touched the communicator";
    EXPECT_TRUE(gpus.nccls[1].windows.empty());
  }
}

TEST(RealCalls, ShuttingWaitsForTheCallThatIsUnderWayButNotForEver) {
  RealCalls calls;
  struct Door {
    std::atomic<bool> is_inside{false}, may_end{false};
  } door;
  const auto run = [](void* context, const braid_nccl_call*) {
    Door& through = *static_cast<Door*>(context);
    through.is_inside = true;
    while (!through.may_end) std::this_thread::yield();
    return 0;
  };
  const braid_nccl_call call{};
  braid_nccl_real real{};
  real.context = &door;
  real.run = run;
  std::thread caller([&] { EXPECT_TRUE(calls.run(real, call).ok()); });
  while (!door.is_inside) std::this_thread::yield();
  const int64_t began_ns = now_ns();
  calls.shut();  // the call that is under way ends only when the communicator does
  EXPECT_LT(now_ns() - began_ns, 10_s);
  door.may_end = true;
  caller.join();
  EXPECT_EQ(calls.run(real, call).code(), Code::kUnavailable);
}

class HeldRace : public testing::Test {
 protected:
  HeldRace()
      : folder_(fs::temp_directory_path() / ("braid_race_" + std::to_string(sys::process_id()))) {
    fs::remove_all(folder_);
    log::configure("off");
  }
  ~HeldRace() override {
    fs::remove_all(folder_);
    log::configure("warn");
  }

  struct Terms {
    Options options = {};
    int version = 22809;
    bool is_busy = false, has_room = true;
    SizeRange sizes = SizeRange::of(false);
    int64_t time_ns = 60_s;
    bool in_windows = false;
  };
  static Terms with(Options options) {
    Terms terms;
    terms.options = std::move(options);
    return terms;
  }
  /// A race that has run at all by its first lap: a whole one takes seconds under a sanitizer.
  static Terms one_lap(Terms terms) {
    terms.time_ns = 1;
    return terms;
  }

  /// The ranks' choices, which are one; and how many calls of NCCL's it took.
  std::pair<braid_nccl_choice, int> hold(double ratio, const Terms& terms) {
    Options all = terms.options;
    all["BRAID_CACHE_DIR"] = folder_.string();
    const Config config = test::make_config(all);
    FakeGpus gpus;
    if (terms.is_busy)
      gpus.cuda.define_kernel("braid_longest_pause",
                              [](const sys::LaunchShape&, std::span<void*> args) {
                                *test::argument<int64_t*>(args, 0) = 2'000'000;
                                return Status();
                              });
    for (FakeNccl& nccl : gpus.nccls) nccl.by_braid = ratio;
    Said said;
    gpus.on_all(
        [&](GpuRank&, Entrants entrants) {
          entrants.sizes = terms.sizes;
          entrants.in_windows = terms.in_windows;
          const auto held = hold_race(entrants, {config, Deadline::after_ns(60_s), terms.time_ns,
                                                 [&] { return terms.has_room; }});
          said.add(held.status(), held.ok() ? held->choice : braid_nccl_choice{});
        },
        terms.version);
    for (const Status& status : said.statuses) EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(said.choices.at(0).won, said.choices.at(1).won);
    EXPECT_EQ(said.choices[0].measured, said.choices[1].measured);
    return {said.choices[0], gpus.nccls[0].num_calls};
  }
  size_t num_files() const {
    return fs::exists(folder_) ? static_cast<size_t>(std::distance(fs::directory_iterator(folder_),
                                                                   fs::directory_iterator()))
                               : 0;
  }

  const fs::path folder_;
};

// Too little memory for all sizes: the next process may have more.
TEST_F(HeldRace, WhatLackedMemoryIsNotKept) {
  Terms last_two;
  last_two.sizes.begin = 4;
  EXPECT_EQ(hold(1.5, last_two).first.won, 16U);
  EXPECT_EQ(num_files(), 0U);
}

TEST_F(HeldRace, BesideOthersNobodyRaces) {
  Terms busy;
  busy.is_busy = true;
  const auto [choice, num_calls] = hold(1.5, busy);
  EXPECT_EQ(choice.measured, 0U) << "NCCL's";
  EXPECT_EQ(num_calls, 0);
  EXPECT_EQ(num_files(), 0U);
}

TEST_F(HeldRace, WithoutRoomForOursThereIsNone) {
  Terms full;
  full.has_room = false;
  const auto [choice, num_calls] = hold(1.5, full);
  EXPECT_EQ(choice.measured, 0U);
  EXPECT_EQ(num_calls, 0);
}

TEST_F(HeldRace, WhatIsKeptIsNotRacedAgain) {
  // Of these fake GPUs: what rank 0 will look for.
  const std::vector<std::string> ranks = {own_facts("NVIDIA H200 0000:10:00.0", 13000),
                                          own_facts("NVIDIA H200 0000:20:00.0", 13000)};
  const Config plain;
  const std::string key =
      race_key({BRAID_NCCL_ALL_GATHER, SizeRange::of(false), 22809, 0, ranks}, plain);
  fs::create_directories(folder_);
  const std::string path = (folder_ / ("tuning-nccl-" + key + ".json")).string();
  ASSERT_TRUE(sys::write_file(path, race_to_json(key, {{0x3f, 0x30}, 0})).ok());
  const auto [choice, num_calls] = hold(1.5, {});
  EXPECT_EQ(choice.won, 0x30U) << "as the file says";
  EXPECT_EQ(num_calls, 0);
  Terms newer;
  newer.version = 23000;
  EXPECT_GT(hold(1.5, one_lap(newer)).second, 0) << "another NCCL";
  EXPECT_GT(hold(1.5, one_lap(with({{"BRAID_GPU_LINES", "1MiB"}}))).second, 0) << "other settings";
  EXPECT_GT(hold(1.5, one_lap(with({{"BRAID_TUNE", "force"}}))).second, 0);
  EXPECT_EQ(sys::read_file(path, 1 << 20).value(), race_to_json(key, {{0x3f, 0x30}, 0}))
      << "one that was forced and cut off has less";
  // Two sizes, for which it took so long.
  ASSERT_TRUE(sys::write_file(path, race_to_json(key, {{0x3, 0x2}, 50_s})).ok());
  EXPECT_EQ(hold(1.5, {}).first.measured, 3U) << "there is about as much time now";
  ASSERT_TRUE(sys::write_file(path, race_to_json(key, {{0x3, 0x2}, 1_s})).ok());
  const auto [more, num_more_calls] = hold(1.5, {});
  EXPECT_EQ(more.measured, kAllSmall) << "and now more";
  EXPECT_EQ(more.won & 3U, 2U) << "what was known is not run again";
  EXPECT_EQ(more.won & 16U, 16U);
  EXPECT_LT(num_more_calls, hold(1.5, with({{"BRAID_TUNE", "force"}})).second);
  // What was kept of calls elsewhere, also by a version that knew no windows, says nothing of these.
  ASSERT_TRUE(sys::write_file(path, race_to_json(key, {{0x3f, 0x30}, 0})).ok());
  Terms there;
  there.in_windows = true;
  EXPECT_GT(hold(1.5, one_lap(there)).second, 0);
  const std::string key_there =
      race_key({BRAID_NCCL_ALL_GATHER, SizeRange::of(false), 22809, 0, ranks, "", true}, plain);
  const std::string path_there = (folder_ / ("tuning-nccl-" + key_there + ".json")).string();
  fs::copy_file(path, path_there, fs::copy_options::overwrite_existing);
  EXPECT_GT(hold(1.5, one_lap(there)).second, 0) << "of another key";
  ASSERT_TRUE(sys::write_file(path_there, race_to_json(key_there, {{0x3f, 0x0f}, 0})).ok());
  const auto [choice_there, num_calls_there] = hold(1.5, there);
  EXPECT_EQ(choice_there.won, 0x0fU);
  EXPECT_EQ(num_calls_there, 0);
  EXPECT_EQ(hold(1.5, {}).first.won, 0x30U);
  ASSERT_TRUE(sys::write_file(path, "{}").ok());
  EXPECT_GT(hold(1.5, one_lap({})).second, 0) << "damaged";
}

// Seats of one node, from the roll to the verdicts: two of an operation, one there and one elsewhere.
TEST(SeatInWindows, AnOperationIsRacedThereAndElsewhere) {
  FakeGpus gpus;
  test::define_all_kernels(gpus.cuda);
  test::define_team_kernels(gpus.cuda);
  for (FakeNccl& nccl : gpus.nccls) {
    nccl.by_braid = 2;
    nccl.in_windows_by_braid = 0.5;
  }
  const fs::path folder =
      fs::temp_directory_path() / ("braid_seat_race_" + std::to_string(sys::process_id()));
  Options options = {
      {"BRAID_NCCL_SHARED", "on"},
      {"BRAID_GPU_PACKETS", "512KiB"},  // with few the arena is 8 MiB, which SmallCuda has not
      {"BRAID_GPU_LINES", "0"},
      {"BRAID_GPU_SCRATCH", "16MiB"},
      {"BRAID_GPU_RDMA", "off"},
      {"BRAID_GPU_DIRECT", "0"},
      {"BRAID_CACHE_DIR", folder.string()},
      {"BRAID_TUNE_TIME", kIsSanitized ? "60s" : "20s"}};
  const std::string key = "seat in windows " + std::to_string(sys::process_id());
  std::vector<std::unique_ptr<Seat>> seats;
  for (int rank = 0; rank < kRanks; ++rank) {
    auto seat = Seat::sign(key, 0, gpus.cuda, test::make_config(options));
    ASSERT_TRUE(seat.ok()) << seat.status().to_string();
    seats.push_back(std::move(seat).value());
  }
  Said elsewhere, there;
  const auto race_on = [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    const auto scope = sys::CurrentDevice::use(gpus.cuda, rank);
    const Status opened = seats[i]->open(rank, kRanks, rank);
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    const braid_nccl_real real = gpus.nccls[i].real();
    braid_nccl_choice choice{};
    const Status raced = seats[i]->race(BRAID_NCCL_ALL_GATHER, {}, &real, choice);
    elsewhere.add(raced, choice);
    EXPECT_EQ(gpus.nccls[i].num_opened, 0);
    const Status raced_there = seats[i]->race(BRAID_NCCL_ALL_GATHER, {false, true}, &real, choice);
    there.add(raced_there, choice);
    EXPECT_EQ(gpus.nccls[i].num_opened, 1);
    EXPECT_TRUE(seats[i]->status().ok());
    seats[i]->close(true);
  };
  std::thread other([&] { race_on(1); });
  race_on(0);
  other.join();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(elsewhere.statuses.at(i).ok()) << elsewhere.statuses[i].to_string();
    EXPECT_TRUE(there.statuses.at(i).ok()) << there.statuses[i].to_string();
    EXPECT_EQ(elsewhere.choices[i].won & 16U, 16U);
    EXPECT_EQ(there.choices[i].measured & 16U, 16U);
    EXPECT_EQ(there.choices[i].won & 16U, 0U);
  }
  expect_no_windows(gpus);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace braid::nccl
