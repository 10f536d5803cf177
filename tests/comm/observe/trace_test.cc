#include "comm/observe/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "support/observed.h"

namespace braid::comm {
namespace {

using Json = nlohmann::ordered_json;
using plan::Op;

constexpr Clocks kClocks{9'000'000, 1'700'000'000'000'000'000};

JournalPages pages(const std::string& name, std::vector<CallNote> notes, uint64_t num_calls = 0) {
  JournalPages made{test::facts_of(name, 3), std::move(notes), num_calls};
  made.num_calls = std::max<uint64_t>(num_calls, made.notes.size());
  return made;
}

CallNote host_call() {
  CallNote note = test::host_note(Op::kAllReduce, 25'000);  // 100 kB
  note.number = 7;
  note.begin_ns = 1'000'500;
  note.end_ns = 1'200'500;  // 200 us
  note.state = CallState::kCompleted;
  note.path = "lanes";
  note.links = {{0, 49'152, 60'000, 50'000, 150'000}, {1, 16'384, 10'000, 20'000, 100'000}};
  return note;
}

CallNote gpu_call() {
  CallNote note = test::gpu_note(Op::kAllGather, 1'000);
  note.number = 8;
  note.begin_ns = 2'000'000;
  note.end_ns = 2'010'000;
  note.gpu_begin_ns = 2'500'000;
  note.gpu_end_ns = 2'540'000;
  note.state = CallState::kCompleted;
  note.path = "copy engines";
  note.links = {{2, 61'000, 11'000, 0, 0}, {3, 4'536, 1'000, 0, 0}};
  return note;
}

std::vector<Json> with_category(const Json& trace, const std::string& category) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"])
    if (event.value("cat", "") == category && event["ph"] == "X") found.push_back(event);
  return found;
}

TEST(Trace, HasHostCallsAndTheirLinks) {
  const Json trace = Json::parse(trace_json({pages("comm0", {host_call()})}, "host", kClocks));
  const auto calls = with_category(trace, "host");
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0]["name"], "all_reduce");
  EXPECT_EQ(calls[0]["pid"], 3);
  EXPECT_DOUBLE_EQ(calls[0]["ts"], 1000.5);
  EXPECT_DOUBLE_EQ(calls[0]["dur"], 200);
  const Json& args = calls[0]["args"];
  EXPECT_EQ(args["call"], 7);
  EXPECT_EQ(args["state"], "completed");
  EXPECT_EQ(args["dtype"], "float32");
  EXPECT_EQ(args["redop"], "sum");
  EXPECT_EQ(args["bytes"], 100'000);
  EXPECT_DOUBLE_EQ(args["algbw_gbps"], 0.5);
  EXPECT_DOUBLE_EQ(args["busbw_gbps"], 0.75);  // 2 * 3 / 4
  EXPECT_DOUBLE_EQ(args["links"]["shm"]["share"], 0.75);
  EXPECT_EQ(args["links"]["staged"]["received_bytes"], 20'000);
  const auto links = with_category(trace, "link");
  ASSERT_EQ(links.size(), 2u);
  EXPECT_DOUBLE_EQ(links[0]["dur"], 150);
  EXPECT_DOUBLE_EQ(links[0]["args"]["gbps"], 0.4);
  EXPECT_DOUBLE_EQ(links[1]["dur"], 100);
  EXPECT_NE(links[0]["tid"], links[1]["tid"]);
}

TEST(Trace, HasGpuWorkWithAnArrowFromItsCall) {
  const Json trace = Json::parse(trace_json({pages("comm0", {gpu_call()})}, "host", kClocks));
  const auto calls = with_category(trace, "enqueue"), work = with_category(trace, "gpu");
  ASSERT_EQ(calls.size(), 1u);
  ASSERT_EQ(work.size(), 1u);
  EXPECT_DOUBLE_EQ(calls[0]["dur"], 10);
  EXPECT_DOUBLE_EQ(work[0]["ts"], 2500);
  EXPECT_DOUBLE_EQ(work[0]["dur"], 40);
  EXPECT_EQ(work[0]["args"]["stream"], "0xabc0");
  EXPECT_EQ(work[0]["args"]["path"], "copy engines");
  EXPECT_DOUBLE_EQ(work[0]["args"]["algbw_gbps"], 0.4);  // 16 kB in 40 us
  EXPECT_EQ(work[0]["args"]["links"]["pcie"]["sent_bytes"], 1'000);
  EXPECT_TRUE(with_category(trace, "link").empty());
  std::map<std::string, Json> ends;
  for (const Json& event : trace["traceEvents"])
    if (event["name"] == "enqueued") ends[event["ph"]] = event;
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends["s"]["id"], ends["f"]["id"]);
  EXPECT_EQ(ends["s"]["tid"], calls[0]["tid"]);
  EXPECT_EQ(ends["f"]["tid"], work[0]["tid"]);
}

TEST(Trace, CallsUnderWayLastUntilNow) {
  CallNote host = host_call(), gpu = gpu_call();
  host.end_ns = 0;
  host.state = CallState::kStarted;
  gpu.gpu_end_ns = 0;
  gpu.state = CallState::kStarted;
  const Json trace = Json::parse(trace_json({pages("comm0", {host, gpu})}, "host", kClocks));
  EXPECT_DOUBLE_EQ(with_category(trace, "host")[0]["dur"], 9000 - 1000.5);
  EXPECT_DOUBLE_EQ(with_category(trace, "gpu")[0]["dur"], 9000 - 2500);
  EXPECT_FALSE(with_category(trace, "host")[0]["args"].contains("algbw_gbps"));
}

TEST(Trace, FailedCallsSayWhy) {
  CallNote note = host_call();
  note.state = CallState::kFailed;
  note.code = Code::kPeerLost;
  const Json trace = Json::parse(trace_json({pages("comm0", {note})}, "host", kClocks));
  EXPECT_EQ(with_category(trace, "host")[0]["args"]["state"], "failed");
  EXPECT_EQ(with_category(trace, "host")[0]["args"]["error"], "peer_lost");
}

TEST(Trace, EveryCommHasTracksOfItsOwn) {
  const Json trace = Json::parse(
      trace_json({pages("a", {host_call()}), pages("b", {host_call(), gpu_call()})}, "h", kClocks));
  std::map<int, std::string> names;
  for (const Json& event : trace["traceEvents"])
    if (event["name"] == "thread_name") {
      EXPECT_TRUE(names.emplace(event["tid"], event["args"]["name"]).second);
    }
  EXPECT_EQ(names.size(), 7u);  // of both calls, shm, staged; of b the gpu
  const auto calls = with_category(trace, "host");
  EXPECT_EQ(names[calls[0]["tid"]], "a calls");
  EXPECT_EQ(names[calls[1]["tid"]], "b calls");
  EXPECT_EQ(names[with_category(trace, "gpu")[0]["tid"]], "b gpu");
}

TEST(Trace, IsJsonWhateverNamesSay) {
  const std::string name = "a\"b\\c\n\xff";
  const Json trace = Json::parse(trace_json({pages(name, {host_call()})}, name, kClocks));
  EXPECT_EQ(trace["otherData"]["host"].get<std::string>().substr(0, 6), "a\"b\\c\n");
}

TEST(Trace, SaysWhatItLeavesOutAndWhichClockItHas) {
  const Json trace = Json::parse(trace_json({pages("c", {host_call()}, 12)}, "here", kClocks));
  EXPECT_EQ(trace["otherData"]["calls"], 12);
  EXPECT_EQ(trace["otherData"]["calls_left_out"], 11);
  EXPECT_EQ(trace["otherData"]["rank"], 3);
  EXPECT_EQ(trace["otherData"]["monotonic_ns"], 9'000'000);
  EXPECT_EQ(trace["otherData"]["realtime_ns"], 1'700'000'000'000'000'000);
  EXPECT_TRUE(Json::parse(trace_json({}, "here", kClocks))["traceEvents"].is_array());
}

}  // namespace
}  // namespace braid::comm
