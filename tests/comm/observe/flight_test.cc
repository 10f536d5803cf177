#include "comm/observe/flight.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "support/observed.h"

namespace braid::comm {
namespace {

using Json = nlohmann::ordered_json;
using plan::Op;

constexpr Clocks kFlightClocks{5'000, 1'700'000'000'000'005'000};
constexpr int64_t kWall = 1'700'000'000'000'000'000;  // of monotonic 0
constexpr int64_t kTimeoutNs = 30'000'000'000;

CallNote numbered(CallNote note, uint64_t number, CallState state) {
  note.number = number;
  note.begin_ns = static_cast<int64_t>(1'000 * number);
  note.end_ns = note.begin_ns + 500;
  note.state = state;
  return note;
}

Json record_of(std::vector<CallNote> notes, uint64_t num_calls = 0) {
  JournalPages pages{test::facts_of("world", 1), std::move(notes), num_calls};
  pages.num_calls = std::max<uint64_t>(num_calls, pages.notes.size());
  return flight_record({pages}, kFlightClocks, kTimeoutNs);
}

TEST(FlightRecord, HasWhatReadersAskFor) {
  const Json record =
      record_of({numbered(test::host_note(Op::kAllGather, 10), 1, CallState::kCompleted)});
  EXPECT_EQ(record["version"], "2.10");
  EXPECT_EQ(record["pg_config"]["world"]["ranks"], "[0, 1, 2, 3]");
  EXPECT_EQ(record["pg_config"]["world"]["desc"], "undefined");
  ASSERT_EQ(record["entries"].size(), 1u);
  const Json& entry = record["entries"][0];
  EXPECT_EQ(entry["record_id"], 0);
  EXPECT_EQ(entry["pg_id"], 0);
  EXPECT_EQ(entry["process_group"], Json::array({"world", "undefined"}));
  EXPECT_EQ(entry["collective_seq_id"], 1);
  EXPECT_EQ(entry["op_id"], 1);
  EXPECT_EQ(entry["profiling_name"], "nccl:_all_gather_base");
  EXPECT_EQ(entry["input_sizes"], Json::array({Json::array({10})}));
  EXPECT_EQ(entry["output_sizes"], Json::array({Json::array({40})}));
  EXPECT_EQ(entry["input_dtypes"], Json::array({"Float"}));
  EXPECT_EQ(entry["state"], "completed");
  EXPECT_EQ(entry["time_created_ns"], kWall + 1'000);
  EXPECT_EQ(entry["time_discovered_started_ns"], kWall + 1'000);
  EXPECT_EQ(entry["time_discovered_completed_ns"], kWall + 1'500);
  EXPECT_DOUBLE_EQ(entry["duration_ms"], 0.0005);
  EXPECT_EQ(entry["timeout_ms"], 30'000);
  EXPECT_EQ(entry["retired"], true);
  EXPECT_EQ(entry["is_p2p"], false);
  EXPECT_EQ(entry["frames"], Json::array());
}

TEST(FlightRecord, StatesAreTorchs) {
  std::vector<CallNote> notes = {
      numbered(test::host_note(Op::kAllReduce, 4), 1, CallState::kCompleted),
      numbered(test::gpu_note(Op::kAllReduce, 4), 2, CallState::kStarted),
      numbered(test::gpu_note(Op::kAllReduce, 4), 3, CallState::kScheduled),
      numbered(test::host_note(Op::kAllReduce, 4), 4, CallState::kFailed)};
  notes[1].gpu_begin_ns = 2'700;
  const Json record = record_of(notes);
  std::vector<std::string> states;
  for (const Json& entry : record["entries"]) states.push_back(entry["state"]);
  EXPECT_EQ(states, (std::vector<std::string>{"completed", "started", "scheduled", "started"}));
  EXPECT_EQ(record["entries"][1]["time_discovered_started_ns"], kWall + 2'700);
  EXPECT_TRUE(record["entries"][2]["time_discovered_started_ns"].is_null());
  EXPECT_TRUE(record["entries"][3]["time_discovered_completed_ns"].is_null());
  EXPECT_FALSE(record["entries"][3].contains("duration_ms"));
  EXPECT_EQ(record["pg_status"]["0"]["last_enqueued_collective"], 4);
  EXPECT_EQ(record["pg_status"]["0"]["last_completed_collective"], 1);
}

TEST(FlightRecord, NamesAreTorchs) {
  std::set<std::string> names;
  for (const Op op : plan::kAllOps)
    names.insert(record_of({test::host_note(op, 4)})["entries"][0]["profiling_name"]);
  CallNote barrier;
  barrier.shape.is_barrier = true;
  const Json entry = record_of({barrier})["entries"][0];
  names.insert(entry["profiling_name"]);
  EXPECT_EQ(names, (std::set<std::string>{"nccl:_all_gather_base", "nccl:_reduce_scatter_base",
                                          "nccl:all_reduce", "nccl:all_reduce_barrier",
                                          "nccl:all_to_all", "nccl:broadcast"}));
  EXPECT_EQ(entry["input_sizes"], Json::array({Json::array({1})}));
  std::set<std::string> dtypes;
  for (const Dtype dtype : kAllDtypes) {
    CallNote note = test::host_note(Op::kBroadcast, 1);
    note.shape.dtype = dtype;
    dtypes.insert(record_of({note})["entries"][0]["input_dtypes"][0]);
  }
  EXPECT_EQ(dtypes.size(), std::size(kAllDtypes));
}

// Readers hold the sizes of all ranks against each other, but for this name.
TEST(FlightRecord, UnevenCallsAreAllToAlls) {
  for (const Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll}) {
    CallNote note = test::host_note(op, 4);
    note.shape.is_uneven = true;  // of four ranks, which together send what they receive
    const Json entry = record_of({note})["entries"][0];
    EXPECT_EQ(entry["profiling_name"], "nccl:all_to_all");
    EXPECT_EQ(entry["input_sizes"], Json::array({Json::array({16})}));
    EXPECT_EQ(entry["output_sizes"], Json::array({Json::array({16})}));
  }
}

// Readers drop what not all ranks have, by record_id: it goes on where the ring has let go.
TEST(FlightRecord, NumbersGoOnWhereNotesFellOut) {
  std::vector<CallNote> notes;
  for (uint64_t i = 18; i <= 20; ++i)
    notes.push_back(numbered(test::host_note(Op::kAllReduce, 4), i, CallState::kCompleted));
  const Json record = record_of(notes, 20);
  EXPECT_EQ(record["entries"][0]["record_id"], 17);
  EXPECT_EQ(record["entries"][2]["record_id"], 19);
}

TEST(FlightRecord, PutsCommsInTheOrderOfTheirCalls) {
  JournalPages world{test::facts_of("world", 5, 8), {}, 2},
      part{test::facts_of("part", 1, 2), {}, 1};
  part.facts.ranks = {4, 5};
  world.notes = {numbered(test::host_note(Op::kAllReduce, 1), 1, CallState::kCompleted),
                 numbered(test::host_note(Op::kAllReduce, 1), 3, CallState::kCompleted)};
  part.notes = {numbered(test::host_note(Op::kBroadcast, 1), 2, CallState::kCompleted)};
  const Json record = flight_record({world, part}, kFlightClocks, kTimeoutNs);
  ASSERT_EQ(record["entries"].size(), 3u);
  EXPECT_EQ(record["entries"][1]["process_group"][0], "part");
  EXPECT_EQ(record["entries"][1]["pg_id"], 1);
  EXPECT_EQ(record["entries"][1]["record_id"], 1);
  EXPECT_EQ(record["pg_config"]["part"]["ranks"], "[4, 5]");
}

TEST(FlightRecord, LeavesOutWhatWasCaptured) {
  CallNote captured = numbered(test::gpu_note(Op::kAllReduce, 4), 1, CallState::kScheduled);
  captured.is_captured = true;
  EXPECT_TRUE(record_of({captured})["entries"].empty());
}

}  // namespace
}  // namespace braid::comm
