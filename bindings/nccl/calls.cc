#include "bindings/nccl/calls.h"

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace braid::nccl {

namespace {

constexpr const char* kOpNames[] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv"};
static_assert(std::size(kOpNames) == kNumOps);

constexpr uint64_t kDtypeBytes[kNumDtypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

Result<Nodes> nodes_from(std::string_view text) {
  if (text == "off") return Nodes::kOff;
  if (text == "auto") return Nodes::kAuto;
  if (text == "on") return Nodes::kOn;
  return invalid_argument("BRAID_NCCL_NODES: '{}' is not off, auto or on", printable(text));
}

Status choose_ops(std::string_view text, Settings& settings) {
  settings.ops.fill(text == "all");
  if (text == "all" || text == "none") return {};
  for (const std::string_view word : split(text, ',')) {
    const auto* const end = kOpNames + BRAID_NCCL_NUM_OPS;
    const auto* const found = std::find(kOpNames, end, word);
    if (found == end)
      return invalid_argument(
          "BRAID_NCCL_OPS: '{}' is not all, none or one of all_reduce, "
          "all_gather, reduce_scatter, broadcast, all_to_all",
          printable(word));
    settings.ops[static_cast<size_t>(found - kOpNames)] = true;
  }
  return {};
}

/// All ranks' blocks together; nothing when that is no number of bytes.
std::optional<uint64_t> message_bytes(const Call& call, int num_ranks) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 48;
  const bool is_one_buffer = call.op == Op::kAllReduce || call.op == Op::kBroadcast;
  const uint64_t blocks = is_one_buffer ? 1 : static_cast<uint64_t>(num_ranks);
  if (call.count > kMostBytes) return std::nullopt;
  const uint64_t bytes = call.count * kDtypeBytes[call.dtype] * blocks;
  return bytes <= kMostBytes ? std::optional(bytes) : std::nullopt;
}

// Into memory that nobody registered, as most programs' is (records/gpu_before_window_4.json and
// flexlink_8.json, us, braid and NCCL): broadcasts of 256 MiB among four 1,041 and 761, of 16 MiB
// 62 and 65; among eight all_reduces of 64 MiB 368 and 362, of 256 MiB 1,445 and 1,355, all_to_alls
// of 64 MiB 193 and 218, of 256 MiB 939 and 763. Among four all_reduces of 256 MiB 1,145 and 1,194,
// of 512 MiB 2,588 and 2,332 at 2c352be, in more copies than now (no record; docs/measured/nccl.md). Two
// GPUs: braid is faster at every size.
bool is_faster_by_nccl(const Call& call, uint64_t bytes, int num_ranks) {
  constexpr uint64_t kMiB = 1 << 20;
  switch (call.op) {
    case Op::kBroadcast: return num_ranks > 2 && bytes > 16 * kMiB;
    case Op::kAllReduce:
      return (num_ranks > 4 && bytes > 32 * kMiB) || (num_ranks > 2 && bytes > 256 * kMiB);
    case Op::kAllToAll: return num_ranks > 4 && bytes > 64 * kMiB;
    default: return false;
  }
}

bool has_good_numbers(const Call& call, int num_ranks) {
  if (call.dtype < 0 || call.dtype >= kNumDtypes) return false;
  if (call.redop < 0 || call.redop >= kNumRedops) return false;
  return call.root >= 0 && call.root < num_ranks;
}

}  // namespace

const char* op_name(Op op) { return kOpNames[static_cast<size_t>(op)]; }

Result<Settings> settings_from(const Config& config) {
  Settings settings;
  settings.is_on = config.flag("BRAID_NCCL");
  BRAID_RETURN_IF_ERROR(choose_ops(config.text("BRAID_NCCL_OPS"), settings));
  settings.least_bytes = config.bytes("BRAID_NCCL_LEAST");
  const uint64_t most = config.bytes("BRAID_NCCL_MOST");
  settings.most_bytes = most == 0 ? UINT64_MAX : most;
  settings.is_grouped_exchange = config.flag("BRAID_NCCL_GROUPED");
  settings.chosen_by = config.text("BRAID_NCCL_OPS") != "all" ? ChosenBy::kNothing
                       : config.text("BRAID_TUNE") == "off"   ? ChosenBy::kLimits
                                                              : ChosenBy::kRace;
  BRAID_ASSIGN_OR_RETURN(settings.nodes, nodes_from(config.text("BRAID_NCCL_NODES")));
  return settings;
}

// Each word spread over all bits (the finalizer of SplitMix64) before the next is added.
uint64_t fingerprint(const Settings& settings) {
  uint64_t flags = settings.is_on ? 1 : 0;
  for (const bool is_taken : settings.ops) flags = 2 * flags + (is_taken ? 1 : 0);
  flags = 2 * flags + (settings.is_grouped_exchange ? 1 : 0);
  flags = 4 * flags + static_cast<uint64_t>(settings.chosen_by);
  flags = 4 * flags + static_cast<uint64_t>(settings.nodes);
  uint64_t hash = 0;
  for (const uint64_t word : {flags, settings.least_bytes, settings.most_bytes}) {
    hash += word + 0x9e3779b97f4a7c15;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return hash;
}

bool is_wanted(const Settings& settings, const Call& call, int num_ranks) {
  const auto op = static_cast<size_t>(call.op);
  if (op >= settings.ops.size() || !settings.ops[op]) return false;
  if (num_ranks < 2 || num_ranks > most_ranks(settings)) return false;
  if (num_ranks > BRAID_NCCL_MOST_RANKS && !goes_over_nodes(settings, call, num_ranks))
    return false;
  if (call.count == 0 || !has_good_numbers(call, num_ranks)) return false;
  const std::optional<uint64_t> bytes = message_bytes(call, num_ranks);
  if (!bytes || *bytes < settings.least_bytes || *bytes > settings.most_bytes) return false;
  return settings.chosen_by != ChosenBy::kLimits || !is_faster_by_nccl(call, *bytes, num_ranks);
}

int most_ranks(const Settings& settings) {
  return settings.nodes == Nodes::kOff ? BRAID_NCCL_MOST_RANKS : BRAID_NCCL_MOST_NODE_RANKS;
}

// An average of more ranks has no kernel (coll/nodes/stages.h).
bool goes_over_nodes(const Settings& settings, const Call& call, int num_ranks) {
  constexpr int kAverage = 4;
  if (settings.nodes == Nodes::kOff) return false;
  if (call.op == Op::kAllGather) return true;
  return call.op == Op::kReduceScatter &&
         (call.redop != kAverage || num_ranks <= BRAID_NCCL_MOST_RANKS);
}

bool is_left_to_sharp(const Settings& settings, const Call& call) {
  return settings.chosen_by == ChosenBy::kLimits && call.op == Op::kAllReduce;
}

uint64_t bytes_of(const Call& call, int num_ranks) {
  return message_bytes(call, num_ranks).value_or(0);
}

const void* shared_memory(const Call& call) {
  return call.op == Op::kReduceScatter ? call.send : call.recv;
}

uint64_t block_bytes(const Call& call) { return call.count * kDtypeBytes[call.dtype]; }

std::optional<Call> as_all_to_all(std::span<const Call> calls, int num_ranks) {
  const auto n = static_cast<size_t>(num_ranks);
  if (calls.size() != 2 * n) return std::nullopt;
  std::vector<const Call*> sends(n), recvs(n);
  for (const Call& call : calls) {
    if (!has_good_numbers(call, num_ranks)) return std::nullopt;
    if (call.count != calls[0].count || call.dtype != calls[0].dtype ||
        call.stream != calls[0].stream)
      return std::nullopt;
    (call.op == Op::kSend ? sends : recvs)[static_cast<size_t>(call.root)] = &call;
  }
  if (calls[0].count >= size_t{1} << 48) return std::nullopt;  // no addresses are that far apart
  const size_t block = calls[0].count * kDtypeBytes[calls[0].dtype];
  for (size_t r = 0; r < n; ++r) {
    if (sends[r] == nullptr || recvs[r] == nullptr) return std::nullopt;
    if (static_cast<const char*>(sends[r]->send) !=
        static_cast<const char*>(sends[0]->send) + r * block)
      return std::nullopt;
    if (static_cast<char*>(recvs[r]->recv) != static_cast<char*>(recvs[0]->recv) + r * block)
      return std::nullopt;
  }
  Call whole = calls[0];
  whole.op = Op::kAllToAll;
  whole.root = 0;
  whole.send = sends[0]->send;
  whole.recv = recvs[0]->recv;
  whole.is_of_messages = true;
  return whole;
}

}  // namespace braid::nccl
