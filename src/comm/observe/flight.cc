#include "comm/observe/flight.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace braid::comm {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVersion = "2.10";  // of torch 2.11's files, whose fields these are

const char* torch_name(const CallShape& shape) {
  if (shape.is_barrier) return "nccl:all_reduce_barrier";
  if (shape.is_uneven) return "nccl:all_to_all";  // whose sizes alone may differ between ranks
  switch (shape.op) {
    case plan::Op::kAllGather: return "nccl:_all_gather_base";
    case plan::Op::kAllReduce: return "nccl:all_reduce";
    case plan::Op::kReduceScatter: return "nccl:_reduce_scatter_base";
    case plan::Op::kAllToAll: return "nccl:all_to_all";
    case plan::Op::kBroadcast: break;
  }
  return "nccl:broadcast";
}

const char* torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8: return "Char";
    case Dtype::kUint8: return "Byte";
    case Dtype::kInt16: return "Short";
    case Dtype::kUint16: return "UInt16";
    case Dtype::kInt32: return "Int";
    case Dtype::kUint32: return "UInt32";
    case Dtype::kInt64: return "Long";
    case Dtype::kUint64: return "UInt64";
    case Dtype::kFloat16: return "Half";
    case Dtype::kBfloat16: return "BFloat16";
    case Dtype::kFloat32: return "Float";
    case Dtype::kFloat64: return "Double";
    case Dtype::kFloat8E4m3: return "Float8_e4m3fn";
    case Dtype::kFloat8E5m2: break;
  }
  return "Float8_e5m2";
}

/// Elements of the whole buffers, sent and received. What is uneven has those that it would have as
/// an all_to_all, where each block has one receiver: readers add up what all ranks send and receive.
std::pair<uint64_t, uint64_t> torch_sizes(const CallShape& shape, int size) {
  // torch's barrier reduces one element; readers look at sizes of every call.
  const uint64_t least = shape.is_barrier ? 1 : 0;
  uint64_t sent = std::max(shape.send_count, least), received = std::max(shape.recv_count, least);
  if (shape.is_uneven && shape.op == plan::Op::kAllGather) sent *= static_cast<uint64_t>(size);
  if (shape.is_uneven && shape.op == plan::Op::kReduceScatter)
    received *= static_cast<uint64_t>(size);
  return {sent, received};
}

// torch knows no failed calls: one that was not completed stays as far as it came.
const char* torch_name(const CallNote& note) {
  if (note.state == CallState::kCompleted) return "completed";
  return note.state == CallState::kScheduled ? "scheduled" : "started";
}

class FlightWriter {
 public:
  FlightWriter(const Clocks& clocks, int64_t timeout_ns)
      : to_wall_ns_(clocks.realtime_ns - clocks.monotonic_ns), timeout_ns_(timeout_ns) {}

  Json entry(const CallNote& note, const CommFacts& facts, int index) const {
    const CallShape& shape = note.shape;
    const int64_t begin_ns = note.on_gpu ? note.gpu_begin_ns : note.begin_ns;
    const int64_t end_ns = note.state != CallState::kCompleted ? 0
                           : note.on_gpu                       ? note.gpu_end_ns
                                                               : note.end_ns;
    const auto [sent, received] = torch_sizes(shape, facts.size);
    Json entry;
    entry["record_id"] = 0;  // once all are in order
    entry["pg_id"] = index;
    entry["process_group"] = {facts.name, "undefined"};
    entry["collective_seq_id"] = note.number;
    entry["p2p_seq_id"] = 0;
    entry["op_id"] = note.number;
    entry["profiling_name"] =
        shape.name != nullptr ? fmt::format("nccl:{}", shape.name) : torch_name(shape);
    entry["time_created_ns"] = wall(note.begin_ns);
    if (const int64_t took_ns = note.duration_ns(); took_ns > 0)
      entry["duration_ms"] = static_cast<double>(took_ns) / 1e6;
    entry["input_sizes"] = Json::array({Json::array({sent})});
    entry["input_dtypes"] = Json::array({torch_name(shape.dtype)});
    entry["output_sizes"] = Json::array({Json::array({received})});
    entry["output_dtypes"] = Json::array({torch_name(shape.dtype)});
    entry["state"] = torch_name(note);
    entry["time_discovered_started_ns"] = begin_ns != 0 ? Json(wall(begin_ns)) : Json();
    entry["time_discovered_completed_ns"] = end_ns != 0 ? Json(wall(end_ns)) : Json();
    entry["retired"] = note.state == CallState::kCompleted;
    entry["timeout_ms"] = timeout_ns_ / 1'000'000;
    entry["is_p2p"] = false;
    entry["frames"] = Json::array();
    return entry;
  }

 private:
  int64_t wall(int64_t at_ns) const { return at_ns + to_wall_ns_; }
  const int64_t to_wall_ns_, timeout_ns_;
};

/// Numbers of the last calls that were begun, came to run, and were done.
Json status_of(const std::vector<CallNote>& notes) {
  uint64_t enqueued = 0, started = 0, completed = 0;
  for (const CallNote& note : notes) {
    enqueued = note.number;
    if (note.state != CallState::kScheduled) started = note.number;
    if (note.state == CallState::kCompleted) completed = note.number;
  }
  return {{"last_enqueued_collective", enqueued},
          {"last_started_collective", started},
          {"last_completed_collective", completed}};
}

}  // namespace

Json flight_record(const std::vector<JournalPages>& comms, const Clocks& clocks,
                   int64_t timeout_ns) {
  const FlightWriter writer(clocks, timeout_ns);
  Json record;
  record["version"] = kVersion;
  record["comm_lib_version"] = "braid " BRAID_VERSION;
  record["pg_config"] = Json::object();
  record["pg_status"] = Json::object();
  std::vector<Json> entries;
  uint64_t num_calls = 0;
  for (size_t i = 0; i < comms.size(); ++i) {
    const CommFacts& facts = comms[i].facts;
    record["pg_config"][facts.name] = {
        {"name", facts.name},
        {"desc", "undefined"},
        {"ranks", fmt::format("[{}]", fmt::join(facts.ranks, ", "))}};
    record["pg_status"][std::to_string(i)] = status_of(comms[i].notes);
    num_calls += comms[i].num_calls;
    for (const CallNote& note : comms[i].notes)
      if (!note.is_captured)  // it did not run when it was called
        entries.push_back(writer.entry(note, facts, static_cast<int>(i)));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Json& a, const Json& b) {
    return a["time_created_ns"] < b["time_created_ns"];
  });
  // Readers leave out what not all ranks have any more, by these numbers.
  uint64_t next_id = num_calls - entries.size();
  for (Json& entry : entries) entry["record_id"] = next_id++;
  record["entries"] = std::move(entries);
  return record;
}

}  // namespace braid::comm
