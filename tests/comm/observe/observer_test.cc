#include "comm/observe/observer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file_name.h"
#include "base/log.h"
#include "base/sanitizer.h"
#include "support/observed.h"
#include "sys/nvtx/fake.h"

namespace braid::comm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Config config_with(const std::map<std::string, std::string>& options) {
  return Config::from_pairs(options).value();
}

std::unique_ptr<Observer> observer_with(const std::map<std::string, std::string>& options,
                                        int rank = 0, int size = 2) {
  return Observer::create(config_with(options), rank, size, {"shm", "staged"},
                          members_of({introduction(rank)}));
}

void call(Observer& observer, const Status& status = {}) {
  Observed observed(&observer, [] { return test::host_note(plan::Op::kAllReduce, 16); });
  observed.end(status, "lanes", [] { return std::vector<LinkNote>{{0, plan::kWhole, 8, 8, 1}}; });
}

class ObserverTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  const fs::path folder_ =
      fs::path(testing::TempDir()) / ("braid_observer_" + std::to_string(::getpid()));
};

TEST_F(ObserverTest, ThereIsNoneUnlessAskedFor) {
  EXPECT_EQ(observer_with({}), nullptr);
  EXPECT_NE(observer_with({{"BRAID_TRACE_CALLS", "5"}}), nullptr);
  EXPECT_NE(observer_with({{"BRAID_NVTX", "on"}}), nullptr);
}

TEST_F(ObserverTest, KeepsCallsForTracesAndRecords) {
  const auto observer = observer_with({{"BRAID_TRACE_CALLS", "2"}}, 1, 2);
  EXPECT_TRUE(observer->keeps_calls());
  EXPECT_TRUE(observer->wants_gpu_times());
  for (int i = 0; i < 3; ++i) call(*observer);
  const Json trace = Json::parse(observer->trace());
  EXPECT_EQ(trace["otherData"]["calls"], 3);
  EXPECT_EQ(trace["otherData"]["calls_left_out"], 1);
  const Json record = Json::parse(observer->flight_record());
  EXPECT_EQ(record["entries"].size(), 2u);
  EXPECT_EQ(record["entries"][1]["collective_seq_id"], 3);
}

// A slip of the keyboard is no reason to fail, or to run out of memory.
TEST_F(ObserverTest, CallsToKeepHaveABound) {
  log::configure("warn");  // whatever the tests before this one left
  for (const char* const many : {"4194305", "1000000000000", "1000000000000000000"}) {
    testing::internal::CaptureStderr();
    const auto observer = observer_with({{"BRAID_TRACE_CALLS", many}});
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the most is 4194304"), std::string::npos) << said;
    call(*observer);
    EXPECT_EQ(observer->journal().num_notes(), 1u);
  }
}

TEST_F(ObserverTest, KnowsTheMembersRanksInTheJob) {
  const Config config = config_with({{"BRAID_TRACE_CALLS", "2"}});
  const auto ranks = [&](const std::vector<int>& told) {
    return Observer::create(config, 0, 2, {}, {"", told})->journal().facts().ranks;
  };
  EXPECT_EQ(ranks({4, 6}), (std::vector<int>{4, 6}));
  EXPECT_EQ(ranks({4, 4}), (std::vector<int>{0, 1}));  // threads of one process
  EXPECT_EQ(ranks({}), (std::vector<int>{0, 1}));
}

TEST_F(ObserverTest, WithNvtxAloneNothingIsKept) {
  const auto observer = observer_with({{"BRAID_NVTX", "on"}});
  EXPECT_FALSE(observer->keeps_calls());
  EXPECT_FALSE(observer->wants_gpu_times());
  sys::FakeNvtx tool;
  observer->use_nvtx(&tool);
  call(*observer);
  call(*observer, timeout("late"));
  EXPECT_EQ(tool.told(), (std::vector<std::string>{"push all_reduce float32 sum 64 B 64", "pop",
                                                   "push all_reduce float32 sum 64 B 64", "pop"}));
}

TEST_F(ObserverTest, ATraceIsWrittenAtTheEndWithTheRankInItsName) {
  {
    const auto observer = observer_with({{"BRAID_TRACE", at("trace.json")}}, 1, 2);
    call(*observer);
    EXPECT_FALSE(fs::exists(at("trace.1.json")));
    observer->close();
    EXPECT_TRUE(fs::exists(at("trace.1.json")));
  }
  EXPECT_EQ(Json::parse(text_of(at("trace.1.json")))["otherData"]["calls"], 1);
  {
    const auto alone = observer_with({{"BRAID_TRACE", at("alone.json")}}, 0, 1);
  }
  EXPECT_TRUE(fs::exists(at("alone.json")));
  {
    const auto named = observer_with({{"BRAID_TRACE", at("%r-t")}}, 1, 2);
  }
  EXPECT_TRUE(fs::exists(at("1-t")));
}

TEST_F(ObserverTest, AllCommsOfAProcessAreInOneTrace) {
  const std::map<std::string, std::string> options = {{"BRAID_TRACE", at("all.%r.json")}};
  auto first = observer_with(options), second = observer_with(options);
  EXPECT_NE(first->journal().facts().name, second->journal().facts().name);
  call(*first);
  first.reset();
  for (int i = 0; i < 2; ++i) call(*second);
  second.reset();
  EXPECT_EQ(Json::parse(text_of(at("all.0.json")))["otherData"]["calls"], 3);
}

TEST_F(ObserverTest, AFailureThatEndsTheCommIsRecordedOnce) {
  const auto observer = observer_with({{"BRAID_FLIGHT_RECORD", at("fr_")}}, 1, 2);
  call(*observer);
  call(*observer, invalid_argument("ranks disagree"));
  EXPECT_FALSE(fs::exists(at("fr_1")));  // the comm stays usable
  call(*observer, timeout("nothing moved"));
  ASSERT_TRUE(fs::exists(at("fr_1")));
  EXPECT_NE(text_of(at("fr_1")).find("collective_seq_id"), std::string::npos);
  fs::remove(at("fr_1"));
  observer->broken(peer_lost("rank 0"));
  EXPECT_FALSE(fs::exists(at("fr_1")));
  const Tally tally = observer->journal().tally();
  EXPECT_EQ(tally.failures[static_cast<size_t>(Code::kTimeout)], 1u);
  EXPECT_EQ(tally.failures[static_cast<size_t>(Code::kInvalidArgument)], 1u);
  EXPECT_EQ(observer->journal().notes()[2].code, Code::kTimeout);
}

TEST_F(ObserverTest, NothingIsNotedDuringAPause) {
  const auto observer = observer_with({{"BRAID_TRACE_CALLS", "8"}});
  {
    const Unobserved outer(observer.get());
    {
      const Unobserved inner(observer.get());
    }
    call(*observer);
  }
  call(*observer);
  EXPECT_EQ(observer->journal().num_calls(), 1u);
  const Unobserved of_nobody(nullptr);
}

// What a call pays when nobody observes: the look at a pointer. A tenth of a microsecond would be
// a hundred times that, on any machine.
TEST_F(ObserverTest, WithoutObserverACallPaysNothing) {
  constexpr double kMostNs = kIsSanitized ? 5'000 : 100;
  constexpr int kCalls = 200'000;
  Observer* volatile nobody = nullptr;
  int described = 0;
  const int64_t begin_ns = now_ns();
  for (int i = 0; i < kCalls; ++i) {
    Observed observed(nobody, [&] {
      ++described;
      return CallNote();
    });
    observed.end({}, "lanes", [&] { return std::vector<LinkNote>(1); });
  }
  const double ns_per_call = static_cast<double>(now_ns() - begin_ns) / kCalls;
  EXPECT_EQ(described, 0);
  EXPECT_LT(ns_per_call, kMostNs);
  const auto observer = observer_with({{"BRAID_TRACE_CALLS", "1000"}});
  const int64_t noted_ns = now_ns();
  for (int i = 0; i < kCalls / 10; ++i) call(*observer);
  const double ns_per_note = static_cast<double>(now_ns() - noted_ns) / (kCalls / 10);
  RecordProperty("ns_off", std::to_string(ns_per_call));
  RecordProperty("ns_on", std::to_string(ns_per_note));
  printf("[ observed ] %.2f ns a call without observer, %.0f ns with notes\n", ns_per_call,
         ns_per_note);
}

}  // namespace
}  // namespace braid::comm
