// Reliable connections between two processes, on whatever devices there are: `make test-verbs` runs
// this on soft-RoCE, with both processes on one machine and with one on each of two.
#include <fcntl.h>
#include <sys/mman.h>

#include <csignal>
#include <cstring>
#include <set>

#include "base/clock.h"
#include "support/two_sides.h"

namespace braid::test {
namespace {

using sys::FabricEvent;
using sys::FabricOp;
using Kind = FabricEvent::Kind;

/// Byte `i` of what `seed` stands for.
std::byte pair_byte(size_t i, uint32_t seed) {
  return static_cast<std::byte>((i * 31 + i / 251 + seed * 97) & 0xff);
}
void fill(std::byte* memory, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) memory[i] = pair_byte(i, seed);
}
/// How many bytes are right from the beginning.
size_t right_bytes(const std::byte* memory, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i)
    if (memory[i] != pair_byte(i, seed)) return i;
  return bytes;
}
double seconds_since(int64_t began_ns) { return static_cast<double>(now_ns() - began_ns) / 1e9; }

class VerbsPair : public testing::Test {
 protected:
  void SetUp() override {
    devices_ = verbs_devices();
    if (devices_.empty()) GTEST_SKIP() << "no RDMA device";
  }
  /// Posts one write and answers its event.
  static FabricEvent write_one(End& end, const sys::FabricTransfer& transfer) {
    FabricOp op;
    const auto posted = end.endpoint->write(transfer, &op);
    EXPECT_TRUE(posted.ok() && posted.value()) << posted.status().to_string();
    const auto events = end.wait(1);
    EXPECT_EQ(events.size(), 1u);
    if (events.empty()) return {.kind = Kind::kFailed};
    EXPECT_EQ(events[0].op, &op);
    return events[0];
  }
  /// The other side sees `immediate` arrive.
  static void expect_arrival(End& end, uint32_t immediate) {
    const auto events = end.wait(1);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, Kind::kArrived) << end.endpoint->why(events[0]);
    EXPECT_EQ(events[0].immediate, immediate);
  }
  /// One write each way works.
  static void expect_works(Side& side, End& end, uint32_t seed) {
    if (side.is_first()) {
      fill(end.memory.data(), 5000, seed);
      auto t = end.transfer(0, 8192, 5000);
      t.immediate = seed;
      const FabricEvent event = write_one(end, t);
      EXPECT_EQ(event.kind, Kind::kCompleted) << end.endpoint->why(event);
    } else {
      expect_arrival(end, seed);
      EXPECT_EQ(right_bytes(end.memory.data() + 8192, 5000, seed), 5000u);
    }
    side.meet();
  }
  std::vector<std::string> devices_;
};

TEST_F(VerbsPair, WritesOfAllSizesAreWholeBeforeTheirImmediate) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 100'000, 8 << 20};
    for (uint32_t i = 0; i < std::size(sizes); ++i) {
      const size_t bytes = sizes[i];
      if (side.is_first()) {
        fill(end.memory.data() + i, bytes, i);
        auto t = end.transfer(i, 3 * i, bytes);
        t.immediate = 0xcafe0000 + i;
        const FabricEvent event = write_one(end, t);
        EXPECT_EQ(event.kind, Kind::kCompleted) << end.endpoint->why(event);
      } else {
        expect_arrival(end, 0xcafe0000 + i);
        EXPECT_EQ(right_bytes(end.memory.data() + 3 * i, bytes, i), bytes);
        EXPECT_EQ(end.memory[3 * i + bytes], std::byte{0}) << "nothing behind it";
        std::memset(end.memory.data(), 0, bytes + 3 * i);
      }
      side.meet();
    }
  });
}

// 2,000 writes through queues of 32 in chains of 1 to 7, some without an immediate: the sender is
// told that it is busy, no completion is lost, each immediate comes once, after its bytes.
TEST_F(VerbsPair, ChainsOfWritesThroughShortQueuesLoseNothing) {
  constexpr uint32_t kWrites = 2000;
  constexpr size_t kStride = 512;
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0], 32);
    if (HasFatalFailure()) return;
    const auto bytes_of = [](uint32_t i) { return size_t{1} + i * 7 % 400; };
    if (side.is_first()) {
      std::vector<FabricOp> ops(kWrites);
      std::set<FabricOp*> completed;
      size_t times_busy = 0;
      const auto take = [&](const std::vector<FabricEvent>& events) {
        for (const FabricEvent& e : events) {
          EXPECT_EQ(e.kind, Kind::kCompleted) << end.endpoint->why(e);
          EXPECT_TRUE(completed.insert(e.op).second) << "twice";
        }
      };
      for (uint32_t i = 0; i < kWrites; ++i) fill(end.memory.data() + i * kStride, bytes_of(i), i);
      for (uint32_t i = 0; i < kWrites;) {
        auto t = end.transfer(i * kStride, i * kStride, bytes_of(i));
        if (i % 5 != 4) t.immediate = i;
        t.has_more = i % 7 != 6;
        const auto posted = end.endpoint->write(t, &ops[i]);
        ASSERT_TRUE(posted.ok()) << posted.status().to_string();
        i += posted.value() ? 1 : 0;
        times_busy += posted.value() ? 0 : 1;
        if (!posted.value()) take(end.wait(1, 0));
      }
      take(end.wait(kWrites - completed.size()));
      EXPECT_EQ(completed.size(), kWrites);
      EXPECT_GT(times_busy, 0u) << "the queues were never full";
    } else {
      std::set<uint32_t> seen;
      for (const FabricEvent& e : end.wait(kWrites / 5 * 4)) {
        EXPECT_EQ(e.kind, Kind::kArrived) << end.endpoint->why(e);
        EXPECT_TRUE(seen.insert(e.immediate).second) << e.immediate << " twice";
        EXPECT_EQ(right_bytes(end.memory.data() + e.immediate * kStride, bytes_of(e.immediate),
                              e.immediate),
                  bytes_of(e.immediate));
      }
      EXPECT_EQ(seen.size(), kWrites / 5 * 4);
    }
    side.meet();
    uint32_t whole = 0;
    for (uint32_t i = 0; i < kWrites; ++i)
      whole += right_bytes(end.memory.data() + i * kStride, bytes_of(i), i) == bytes_of(i);
    EXPECT_EQ(whole, kWrites);
  });
}

TEST_F(VerbsPair, ReadsFetchWhatThePeerHas) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(end.domain->limits().can_read);
    fill(end.memory.data(), 1 << 20, side.is_first() ? 1 : 2);
    side.meet();
    for (const size_t bytes : {1, 64, 5000, 1 << 19}) {
      if (!side.is_first()) continue;
      FabricOp op;
      ASSERT_TRUE(end.endpoint->read(end.transfer(1 << 20, 0, bytes), &op).value());
      const auto events = end.wait(1);
      ASSERT_EQ(events.size(), 1u);
      EXPECT_EQ(events[0].kind, Kind::kCompleted) << end.endpoint->why(events[0]);
      EXPECT_EQ(events[0].op, &op);
      EXPECT_EQ(right_bytes(end.memory.data() + (1 << 20), bytes, 2), bytes);
    }
    side.meet();
  });
}

TEST_F(VerbsPair, MessagesGoIntoWhatWasOfferedInItsOrder) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    const auto message = [&](size_t at, size_t bytes) {
      return sys::FabricMessage{
          .peer = end.peer, .region = end.region, .memory = end.memory.data() + at, .bytes = bytes};
    };
    FabricOp ops[4];
    for (size_t i = 0; i < 3 && !side.is_first(); ++i)
      ASSERT_TRUE(end.endpoint->receive(message(i * 1000, 1000), &ops[i]).value());
    side.meet();
    for (uint32_t i = 0; i < 3 && side.is_first(); ++i) {
      fill(end.memory.data(), 300 * i, i);
      ASSERT_TRUE(end.endpoint->send(message(0, 300 * i), &ops[i]).value());
      EXPECT_EQ(end.wait(1).at(0).op, &ops[i]);
    }
    for (uint32_t i = 0; i < 3 && !side.is_first(); ++i) {
      const FabricEvent event = end.wait(1).at(0);
      EXPECT_EQ(event.kind, Kind::kReceived);
      EXPECT_EQ(event.op, &ops[i]);
      EXPECT_EQ(event.bytes, 300 * i);
      EXPECT_EQ(right_bytes(end.memory.data() + i * 1000, 300 * i, i), 300 * i);
    }
    side.meet();
    // One that is longer than what was offered fails on both sides, with its operation.
    if (!side.is_first()) {
      ASSERT_TRUE(end.endpoint->receive(message(0, 10), &ops[3]).value());
    }
    side.meet();
    if (side.is_first()) {
      ASSERT_TRUE(end.endpoint->send(message(0, 11), &ops[3]).value());
    }
    const auto events = end.wait(1);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, Kind::kFailed);
    EXPECT_EQ(events[0].op, &ops[3]);
    side.meet();
  });
}

TEST_F(VerbsPair, WhatTheTargetDoesNotAllowFailsAndWritesNothing) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    const auto attempt = [&](const char* what,
                             const std::function<void(sys::FabricTransfer&)>& spoil) {
      SCOPED_TRACE(what);
      if (side.is_first()) {
        fill(end.memory.data(), 4096, 7);
        auto t = end.transfer(0, End::kBytes - 4096, 4096);
        t.immediate = 1;
        spoil(t);
        const FabricEvent event = write_one(end, t);
        EXPECT_EQ(event.kind, Kind::kFailed);
        EXPECT_NE(end.endpoint->why(event).find("verbs"), std::string::npos);
        const auto again = end.endpoint->write(end.transfer(0, 0, 8), nullptr);
        EXPECT_EQ(again.status().code(), Code::kPeerLost)
            << "a connection that broke takes no more";
      }
      side.meet();
      if (!side.is_first()) {
        for (const FabricEvent& e : end.wait(100, 0.2)) EXPECT_EQ(e.kind, Kind::kFailed);
        EXPECT_EQ(end.memory[End::kBytes - 1], std::byte{0});
        EXPECT_EQ(end.memory[End::kBytes - 4096], std::byte{0});
      }
      side.meet();
      connect_again(side, end);
      expect_works(side, end, 40);
    };
    attempt("a wrong key", [](auto& t) { t.remote_key ^= 0x5a5a00; });
    attempt("one byte too far", [](auto& t) { t.remote_address += 1; });
    attempt("before the region", [&](auto& t) { t.remote_address = end.remote_address - 1; });
    if (!side.is_first()) end.domain->unregister(end.region);
    side.meet();
    if (side.is_first()) {
      const FabricEvent event = write_one(end, end.transfer(0, 0, 4096));
      EXPECT_EQ(event.kind, Kind::kFailed) << "the region is gone";
    }
    side.meet();
  });
}

// Found out before the NIC is asked, so the connection lives on.
TEST_F(VerbsPair, WrongRequestsAreRefusedAndCostNothing) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    FabricOp op;
    const auto code = [&](const sys::FabricTransfer& t) {
      return end.endpoint->write(t, &op).status().code();
    };
    EXPECT_EQ(code(end.transfer(End::kBytes - 10, 0, 11)), Code::kInvalidArgument);
    EXPECT_EQ(code(end.transfer(0, 0, end.domain->limits().max_write_bytes + 1)),
              Code::kInvalidArgument);
    auto stranger = end.transfer(0, 0, 1);
    stranger.peer = 1;
    EXPECT_EQ(code(stranger), Code::kInvalidArgument);
    auto nowhere = end.transfer(0, 0, 1);
    nowhere.local_region = nullptr;
    EXPECT_EQ(code(nowhere), Code::kInvalidArgument);
    EXPECT_FALSE(end.endpoint->add_peer(end.endpoint->name()).ok()) << "it has a peer";
    const auto other = end.domain->open_endpoint({});
    for (const std::string& name : {std::string(), std::string(44, 'x'), std::string(100, '\0')})
      EXPECT_EQ(other.value()->add_peer(name).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(end.domain->open_endpoint({.num_peers = 2}).status().code(), Code::kUnsupported);
    EXPECT_EQ(end.domain->open_endpoint({.queue_depth = 0}).status().code(),
              Code::kInvalidArgument);
    expect_works(side, end, 3);
  });
}

// The target has 64 receives for immediates: the rest wait in the sender until it polls.
TEST_F(VerbsPair, ATargetThatIsBusyElsewhereGetsAllImmediatesLater) {
  constexpr uint32_t kWrites = 200;
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0], 32);
    if (HasFatalFailure()) return;
    if (side.is_first()) {
      FabricOp op;
      size_t completed = 0;
      uint32_t posted = 0;
      const auto move = [&](double seconds) {
        for (const int64_t began = now_ns();
             seconds_since(began) < seconds && completed < kWrites;) {
          auto t = end.transfer(0, 0, 16);
          t.immediate = posted;
          if (posted < kWrites && end.endpoint->write(t, &op).value()) ++posted;
          for (const FabricEvent& e : end.wait(1, 0)) {
            ASSERT_EQ(e.kind, Kind::kCompleted) << end.endpoint->why(e);
            ++completed;
          }
        }
      };
      move(0.5);
      EXPECT_LT(completed, kWrites) << "the target took more than it had receives for";
      side.meet();
      move(30);
      EXPECT_EQ(completed, kWrites);
    } else {
      side.meet();
      const auto events = end.wait(kWrites);
      ASSERT_EQ(events.size(), kWrites);
      for (uint32_t i = 0; i < kWrites; ++i) EXPECT_EQ(events[i].immediate, i);
    }
    side.meet();
  });
}

// The target closes its endpoint in the middle of a stream of writes: from then on its memory is
// its own, though the sender goes on trying.
TEST_F(VerbsPair, NothingLandsOnceAnEndpointIsClosed) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0], 64);
    if (HasFatalFailure()) return;
    for (int round = 0; round < 3; ++round) {
      FabricOp op;
      if (side.is_first()) {
        std::memset(end.memory.data(), 1 + round, End::kBytes);
        uint32_t posted = 0;
        int64_t began = now_ns();
        bool is_whole = true;
        while (is_whole) {
          auto t = end.transfer(0, posted % 8 * (1 << 20), 1 << 20);
          t.immediate = posted;
          const auto answer = end.endpoint->write(t, &op);
          if (answer.ok() && answer.value()) ++posted;
          for (const FabricEvent& e : end.wait(1, 0)) {
            if (e.kind == Kind::kCompleted) began = now_ns();
            is_whole = e.kind == Kind::kCompleted;
          }
        }
        EXPECT_GT(seconds_since(began), 0.5) << "given up too early";
        EXPECT_LT(seconds_since(began), 6) << "given up too late";
      } else {
        const auto arrived = end.wait(3);
        ASSERT_EQ(arrived.size(), 3u);
        ASSERT_EQ(end.memory[1 << 20], static_cast<std::byte>(1 + round)) << "it was written";
        const int64_t began = now_ns();
        end.endpoint.reset();
        EXPECT_LT(seconds_since(began), 1);
        std::memset(end.memory.data(), 0xee, End::kBytes);
        const int64_t closed = now_ns();
        while (seconds_since(closed) < 0.5) {
          for (size_t i = 0; i < 8 << 20; i += 512)
            ASSERT_EQ(end.memory[i], std::byte{0xee}) << "landed after the end, at " << i;
        }
      }
      side.meet();
      connect_again(side, end, 64);
    }
    expect_works(side, end, 9);
  });
}

TEST_F(VerbsPair, ClosingWithOperationsUnderWayTakesNoTime) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0], 64);
    if (HasFatalFailure()) return;
    FabricOp op;
    for (int i = 0; i < 40 && side.is_first(); ++i)
      ASSERT_TRUE(end.endpoint->write(end.transfer(0, 0, 1 << 20), &op).value());
    const int64_t began = now_ns();
    if (side.is_first()) end.endpoint.reset();
    EXPECT_LT(seconds_since(began), 1);
    side.meet();
    connect_again(side, end);
    expect_works(side, end, 5);
  });
}

TEST_F(VerbsPair, AKilledPeerIsKnownInSeconds) {
  if (is_on_two_machines()) GTEST_SKIP() << "nobody here to kill";
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    expect_works(side, end, 1);
    if (!side.is_first()) {
      pause();
      return;
    }
    side.signal_other(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const int64_t began = now_ns();
    FabricOp ops[3];
    for (FabricOp& op : ops) ASSERT_TRUE(end.endpoint->write(end.transfer(0, 0, 100), &op).value());
    const auto events = end.wait(3, 20);
    ASSERT_EQ(events.size(), 3u) << "every operation ends";
    for (const FabricEvent& e : events) EXPECT_EQ(e.kind, Kind::kFailed);
    EXPECT_GT(seconds_since(began), 0.5);
    EXPECT_LT(seconds_since(began), 6);
    RecordProperty("seconds", std::to_string(seconds_since(began)));
    std::printf("  known after %.2f s: %s\n", seconds_since(began),
                end.endpoint->why(events[0]).c_str());
  });
}

TEST_F(VerbsPair, AKilledWriterHurtsNobody) {
  if (is_on_two_machines()) GTEST_SKIP() << "nobody here to kill";
  for (uint32_t round = 0; round < 3; ++round) {
    run_two_sides([&](Side& side) {
      End end;
      connect(side, end, devices_[0], 64);
      if (HasFatalFailure()) return;
      FabricOp op;
      while (!side.is_first()) {
        auto t = end.transfer(0, 0, 1 << 20);
        t.immediate = 5;
        (void)end.endpoint->write(t, &op);
        (void)end.wait(1, 0);
      }
      EXPECT_EQ(end.wait(2 + round).size(), 2 + round);
      side.signal_other(SIGKILL);
      for (const FabricEvent& e : end.wait(1000, 0.1)) EXPECT_EQ(e.kind, Kind::kArrived);
      const int64_t began = now_ns();
      end.endpoint.reset();
      EXPECT_LT(seconds_since(began), 1);
    });
  }
}

// A stopped process's NIC goes on: writes land. What needs the process ends by our own clock.
TEST_F(VerbsPair, AStoppedPeerEndsImmediatesInBoundedTime) {
  if (is_on_two_machines()) GTEST_SKIP() << "nobody here to stop";
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0], 128);
    if (HasFatalFailure()) return;
    if (!side.is_first()) {
      side.meet();
      pause();
      return;
    }
    side.meet();
    side.signal_other(SIGSTOP);
    EXPECT_EQ(write_one(end, end.transfer(0, 0, 100)).kind, Kind::kCompleted);
    const int64_t began = now_ns();
    FabricOp op;
    size_t completed = 0, failed = 0;
    while (failed == 0 && seconds_since(began) < 30) {
      auto t = end.transfer(0, 0, 4);
      t.immediate = 1;
      (void)end.endpoint->write(t, &op);
      for (const FabricEvent& e : end.wait(16, 0.01)) {
        completed += e.kind == Kind::kCompleted;
        failed += e.kind == Kind::kFailed;
      }
    }
    EXPECT_EQ(completed, 128u) << "as many as it had offered receives";
    EXPECT_GT(failed, 0u);
    EXPECT_LT(seconds_since(began), 15);
    side.signal_other(SIGKILL);
  });
}

TEST_F(VerbsPair, SeveralDevicesWorkSideBySide) {
  if (devices_.size() < 2) GTEST_SKIP() << "one device";
  constexpr uint32_t kPages = 60;
  constexpr size_t kPageBytes = 16384;
  run_two_sides([&](Side& side) {
    std::vector<End> ends(devices_.size());
    for (size_t d = 0; d < ends.size(); ++d) connect(side, ends[d], devices_[d]);
    if (HasFatalFailure()) return;
    std::vector<FabricOp> ops(kPages);
    for (uint32_t i = 0; i < kPages && side.is_first(); ++i) {
      End& end = ends[i % ends.size()];
      fill(end.memory.data() + i * kPageBytes, kPageBytes, i);
      auto t = end.transfer(i * kPageBytes, i * kPageBytes, kPageBytes);
      t.immediate = i;
      ASSERT_TRUE(end.endpoint->write(t, &ops[i]).value());
    }
    for (size_t d = 0; d < ends.size(); ++d) {
      const auto events = ends[d].wait(kPages / ends.size());
      EXPECT_EQ(events.size(), kPages / ends.size());
      for (const FabricEvent& e : events) {
        if (side.is_first()) {
          EXPECT_EQ(e.kind, Kind::kCompleted) << ends[d].endpoint->why(e);
          continue;
        }
        EXPECT_EQ(e.kind, Kind::kArrived);
        EXPECT_EQ(e.immediate % ends.size(), d);
        EXPECT_EQ(
            right_bytes(ends[d].memory.data() + e.immediate * kPageBytes, kPageBytes, e.immediate),
            kPageBytes);
      }
    }
    side.meet();
  });
}

TEST_F(VerbsPair, APortThatGoesDownIsTold) {
  const std::string cut = variable("BRAID_VERBS_CUT");  // the interface of the first device
  if (cut.empty() || is_on_two_machines()) GTEST_SKIP() << "no port that may go down";
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    expect_works(side, end, 1);
    if (side.is_first()) {
      // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
      ASSERT_EQ(std::system(("ip link set " + cut + " down").c_str()), 0);
    }
    const auto events = end.wait(1, 10);
    EXPECT_EQ(events.size(), 1u);
    if (!events.empty()) {
      EXPECT_EQ(events[0].kind, Kind::kFailed);
      EXPECT_EQ(events[0].op, nullptr);
      EXPECT_NE(end.endpoint->why(events[0]).find("port"), std::string::npos)
          << end.endpoint->why(events[0]);
    }
    side.meet();
    if (side.is_first()) {
      // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
      ASSERT_EQ(std::system(("ip link set " + cut + " up").c_str()), 0);
    }
    side.meet();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    End anew;
    connect(side, anew, devices_[0]);
    if (HasFatalFailure()) return;
    expect_works(side, anew, 2);
  });
}

TEST_F(VerbsPair, EndpointsLeaveNothingBehind) {
  run_two_sides([&](Side& side) {
    End end;
    connect(side, end, devices_[0]);
    if (HasFatalFailure()) return;
    for (uint32_t i = 0; i < 20; ++i) {
      connect_again(side, end);
      if (i % 10 == 0) expect_works(side, end, i);
    }
  });
}

}  // namespace
}  // namespace braid::test
