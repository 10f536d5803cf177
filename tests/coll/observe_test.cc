// What is observed of calls on host memory: the same on all ranks where it must be, and what the
// call itself reports.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/units.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/ranks.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/tune/tune.h"
#include "comm/observe/observer.h"
#include "comm/state.h"
#include "sys/nvtx/fake.h"

namespace braid::coll {
namespace {

namespace fs = std::filesystem;
using comm::CallNote;
using comm::CallState;
using Json = nlohmann::ordered_json;

constexpr int kObservers = 3;
constexpr uint64_t kObservedCount = 60'000;

std::vector<CallNote> notes_of(comm::Comm& comm) {
  return comm.state().observer->journal().notes();
}

Status run_every_op(comm::Comm& comm) {
  std::vector<float> one(kObservedCount, static_cast<float>(comm.rank())),
      all(kObservedCount * kObservers);
  BRAID_RETURN_IF_ERROR(all_gather(comm, one.data(), all.data(), kObservedCount, Dtype::kFloat32));
  BRAID_RETURN_IF_ERROR(
      all_reduce(comm, one.data(), one.data(), kObservedCount, Dtype::kFloat32, RedOp::kMax));
  BRAID_RETURN_IF_ERROR(
      reduce_scatter(comm, all.data(), one.data(), kObservedCount, Dtype::kFloat32, RedOp::kSum));
  BRAID_RETURN_IF_ERROR(broadcast(comm, one.data(), kObservedCount, Dtype::kFloat32, 2));
  const std::vector<uint64_t> sent = {1, 2, 3};
  const std::vector<uint64_t> received(kObservers, static_cast<uint64_t>(comm.rank()) + 1);
  BRAID_RETURN_IF_ERROR(
      all_to_all_v(comm, one.data(), sent, all.data(), received, Dtype::kFloat32));
  return barrier(comm);
}

TEST(Observe, NotesEveryCallOnEveryRank) {
  test::run_comms(
      kObservers, {{"BRAID_LINKS", "shm,staged"}, {"BRAID_TRACE_CALLS", "10"}},
      [](comm::Comm& comm) {
        ASSERT_TRUE(run_every_op(comm).ok());
        const auto notes = notes_of(comm);
        const std::vector<std::string> names = {"all_gather", "all_reduce", "reduce_scatter",
                                                "broadcast",  "all_to_all", "barrier"};
        ASSERT_EQ(notes.size(), names.size());
        for (size_t i = 0; i < notes.size(); ++i) {
          EXPECT_EQ(comm::name_of(notes[i].shape), names[i]);
          EXPECT_EQ(notes[i].number, i + 1);
          EXPECT_EQ(notes[i].state, CallState::kCompleted);
          EXPECT_STREQ(notes[i].path, "lanes");
          EXPECT_FALSE(notes[i].on_gpu);
          EXPECT_GT(notes[i].end_ns, notes[i].begin_ns);
        }
        EXPECT_EQ(notes[0].shape.bytes, kObservedCount * kObservers * 4);
        EXPECT_EQ(notes[1].shape.redop, RedOp::kMax);
        EXPECT_EQ(notes[2].shape.send_count, kObservedCount * kObservers);
        EXPECT_EQ(notes[3].shape.root, 2);
        EXPECT_EQ(notes[4].shape.send_count, 6u);
        EXPECT_EQ(notes[4].shape.recv_count, static_cast<uint64_t>(3 * comm.rank() + 3));
        EXPECT_EQ(notes[5].shape.bytes, 0u);
      });
}

TEST(Observe, LinksAreThoseOfTheReport) {
  const test::Options options = {{"BRAID_LINKS", "shm,staged"}, {"BRAID_TRACE_CALLS", "4"}};
  test::run_comms(2, options, [](comm::Comm& comm) {
    ASSERT_TRUE(comm.force_shares({plan::kWhole / 4 * 3, plan::kWhole / 4}).ok());
    std::vector<float> one(kObservedCount, 1), all(2 * kObservedCount);
    ASSERT_TRUE(all_gather(comm, one.data(), all.data(), kObservedCount, Dtype::kFloat32).ok());
    const comm::CallReport& report = comm.last_call();
    const CallNote note = notes_of(comm).back();
    ASSERT_EQ(note.links.size(), 2u);
    uint64_t received = 0;
    for (const comm::LinkNote& link : note.links) {
      const comm::LinkUse& use = report.links[static_cast<size_t>(link.link)];
      EXPECT_EQ(link.sent_bytes, use.sent_bytes);
      EXPECT_EQ(link.received_bytes, use.received_bytes);
      EXPECT_GE(link.finish_ns, use.finish_ns);  // or the last byte that it sent
      EXPECT_LE(link.finish_ns, note.end_ns - note.begin_ns);
      received += link.received_bytes;
    }
    EXPECT_EQ(received, kObservedCount * 4);
    EXPECT_EQ(note.links[0].parts, plan::kWhole / 4 * 3);
  });
}

TEST(Observe, ATraceOfSeveralLinksIsJson) {
  test::run_comms(kObservers, {{"BRAID_LINKS", "shm,staged"}, {"BRAID_TRACE_CALLS", "10"}},
                  [](comm::Comm& comm) {
                    ASSERT_TRUE(run_every_op(comm).ok());
                    const auto text = comm.trace_json();
                    ASSERT_TRUE(text.ok());
                    const Json trace = Json::parse(text.value());
                    EXPECT_EQ(trace["otherData"]["rank"], comm.rank());
                    EXPECT_GT(trace["traceEvents"].size(), 6u);
                    const Json record = Json::parse(comm.flight_json().value());
                    EXPECT_EQ(record["entries"].size(), 6u);
                  });
}

TEST(Observe, WithoutAnOptionThereIsNothingToShow) {
  test::run_comms(1, {}, [](comm::Comm& comm) {
    EXPECT_EQ(comm.state().observer, nullptr);
    EXPECT_EQ(comm.trace_json().status().code(), Code::kInvalidArgument);
    EXPECT_EQ(comm.flight_json().status().code(), Code::kInvalidArgument);
    comm.call_it("nobody listens");
    EXPECT_TRUE(barrier(comm).ok());
  });
}

TEST(Observe, DisagreementFailsTheCallAndNotTheComm) {
  test::run_comms(2, {{"BRAID_TRACE_CALLS", "4"}, {"BRAID_LOG", "off"}}, [](comm::Comm& comm) {
    std::vector<float> one(8);
    EXPECT_EQ(broadcast(comm, one.data(), 8, Dtype::kFloat32, comm.rank()).code(),
              Code::kInvalidArgument);
    EXPECT_TRUE(barrier(comm).ok());
    const auto notes = notes_of(comm);
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_EQ(notes[0].state, CallState::kFailed);
    EXPECT_EQ(notes[0].code, Code::kInvalidArgument);
    EXPECT_EQ(notes[1].state, CallState::kCompleted);
  });
}

TEST(Observe, TuningIsNotNoted) {
  const std::string cache = testing::TempDir() + "braid_observe_" + std::to_string(::getpid());
  test::run_comms(2,
                  {{"BRAID_LINKS", "shm,staged"},
                   {"BRAID_TRACE_CALLS", "4"},
                   {"BRAID_TUNE", "force"},
                   {"BRAID_TUNE_TIME", "100ms"},
                   {"BRAID_CACHE_DIR", cache}},
                  [](comm::Comm& comm) {
                    ASSERT_TRUE(ensure_tuned(comm, nullptr).ok());
                    EXPECT_GT(comm.state().epoch, 0u);
                    EXPECT_TRUE(notes_of(comm).empty());
                    EXPECT_TRUE(barrier(comm).ok());
                    EXPECT_EQ(notes_of(comm).size(), 1u);
                  });
  fs::remove_all(cache);
}

TEST(Observe, RangesNestInTheCallersThread) {
  test::run_comms(2, {{"BRAID_NVTX", "on"}}, [](comm::Comm& comm) {
    sys::FakeNvtx tool;
    ASSERT_NE(comm.state().observer, nullptr);
    comm.state().observer->use_nvtx(&tool);
    EXPECT_TRUE(barrier(comm).ok());
    EXPECT_EQ(tool.told(), (std::vector<std::string>{"push barrier 0", "pop"}));
    comm.state().observer->use_nvtx(nullptr);
  });
}

// One rank stays away. The other one's call fails; both write what they know, the one that stayed
// away without a call of its own.
TEST(Observe, ALostCallIsRecordedByAllRanks) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("braid_observe_fr_" + std::to_string(::getpid()));
  const test::Options options = {{"BRAID_FLIGHT_RECORD", (folder / "fr_").string()},
                                 {"BRAID_TRACE", (folder / "t.%r.json").string()},
                                 {"BRAID_LOG", "off"},
                                 {"BRAID_TIMEOUT", "300ms"}};
  const auto is_there = [&](int rank) { return fs::exists(folder / fmt::format("fr_{}", rank)); };
  test::run_comms(2, options, [&](comm::Comm& comm) {
    EXPECT_TRUE(barrier(comm).ok());
    if (comm.rank() == 0) {
      EXPECT_EQ(barrier(comm).code(), Code::kTimeout);
    }
    const Deadline deadline = Deadline::after_ns(10_s);
    while (!(is_there(0) && is_there(1)) && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(is_there(comm.rank()));
    const Json record = Json::parse(comm.flight_json().value());
    ASSERT_EQ(record["entries"].size(), comm.rank() == 0 ? 2u : 1u);
    EXPECT_EQ(record["entries"].back()["state"], comm.rank() == 0 ? "started" : "completed");
  });
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream file(folder / fmt::format("t.{}.json", rank));
    EXPECT_TRUE(Json::parse(std::string{std::istreambuf_iterator(file), {}}).is_object());
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace braid::coll
