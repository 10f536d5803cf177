#include "base/config.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/check.h"
#include "base/text.h"
#include "base/units.h"

namespace braid {

namespace {

constexpr OptionAudience kTuning = OptionAudience::kTuning;

// Sorted by name; a test holds the order. Values of string options appear in no message of this
// file, which is what keeps BRAID_JOB_TOKEN out of every log: do not give it another type.
constexpr Option kOptions[] = {
    {"BRAID_BALANCE", OptionType::kBool, "on",
     "Move shares between links while running, by measured finish times; on GPUs too (see "
     "BRAID_GPU_SAMPLE).",
     kTuning},
    {"BRAID_BALANCE_WINDOW", OptionType::kInteger, "10",
     "Calls that the balancer looks at before it moves a share: 1 to 1000000.", kTuning},
    {"BRAID_BIND", OptionType::kString, "",
     "Address on which rank 0's store listens (empty: MASTER_ADDR)."},
    {"BRAID_CACHE_DIR", OptionType::kString, "",
     "Folder of the tuning cache; empty means $XDG_CACHE_HOME/braid or ~/.cache/braid, and for a "
     "user without a home that nothing is kept."},
    {"BRAID_CELL", OptionType::kBytes, "0",
     "Size of the cells that a block is cut into; 0 lets the plan choose.", kTuning},
    {"BRAID_DEPTH", OptionType::kInteger, "16",
     "Slots per lane, which bounds the pieces in flight to one peer.", kTuning},
    {"BRAID_FLIGHT_RECORD", OptionType::kString, "",
     "Start of a file name: when a call fails, the last ones are written there as torch's flight "
     "recorder writes them; the rank is put behind it where it has no %r."},
    {"BRAID_GPU_DIRECT", OptionType::kBytes, "32MiB",
     "Largest GPU all_gather (all ranks' blocks together) that goes by one kernel's stores instead "
     "of copy engines, and up to four times as much of the others; into memory that is not "
     "registered as much as such a kernel has room for, among three ranks or more two in a row; 0 "
     "for none.",
     kTuning},
    {"BRAID_GPU_HOST_WINDOW", OptionType::kBytes, "32KiB",
     "Bytes that a GPU's bulk copies may have on the way to host memory at a time; what waits for "
     "PCIe there stands in NVLink's way.",
     kTuning},
    {"BRAID_GPU_LANES", OptionType::kInteger, "0",
     "Thread blocks that move one flow of a GPU's message over the PCIe link, 1 to 8; 0 chooses.",
     kTuning},
    {"BRAID_GPU_LINES", OptionType::kBytes, "32MiB",
     "Largest GPU message (all ranks' blocks together) that goes by lines of 120 bytes and a flag, "
     "where all GPUs are joined by NVLink; half of it for all_reduce and broadcast, and among "
     "three ranks or more half of it for all_gather and a quarter for the others; 0 for none.",
     kTuning},
    {"BRAID_GPU_PACKETS", OptionType::kBytes, "128KiB",
     "Largest GPU message (all ranks' blocks together) that goes by low-latency packets; half of "
     "it for all_reduce, twice as much for a broadcast among two.",
     kTuning},
    {"BRAID_GPU_RDMA", OptionType::kString, "off",
     "A part of large GPU messages through the NIC: off, auto (where every node has a NIC; sockets "
     "do not count) or on (sockets too: BRAID_RDMA_PROVIDER at the first of BRAID_RDMA_ADDRS).",
     kTuning},
    {"BRAID_GPU_RDMA_SHARE", OptionType::kInteger, "0",
     "Percent of every block of all_gather and all_to_all, and of a broadcast, that goes through "
     "the NIC; 0: what tuning finds.",
     kTuning},
    {"BRAID_GPU_RING", OptionType::kString, "auto",
     "How blocks copy over the PCIe link: threads, bulk (bulk asynchronous copies, sm_90 and "
     "later) "
     "or auto, which is bulk where that can be.",
     kTuning},
    {"BRAID_GPU_SAMPLE", OptionType::kInteger, "4",
     "Of the GPU calls that use the PCIe link, one in this many is timed, so that its share "
     "follows what it can carry; 0 leaves shares as tuning found them.",
     kTuning},
    {"BRAID_GPU_SCRATCH", OptionType::kBytes, "512MiB",
     "Device memory per comm in which operands of large sums land, and large results that are not "
     "registered; the areas of direct kernels and lines come on top (docs/nccl.md), and 16 MiB for "
     "reductions to one rank."},
    {"BRAID_GPU_SLOT", OptionType::kBytes, "0",
     "Size of one slot of the pinned host memory through which GPUs use the PCIe link; 0: 64 KiB "
     "between two GPUs, 128 KiB among more.",
     kTuning},
    {"BRAID_GPU_SLOTS", OptionType::kInteger, "8",
     "Slots of one ring of that memory; few and small ones stay in the last-level cache.", kTuning},
    {"BRAID_GPU_SUM_BLOCKS", OptionType::kInteger, "0",
     "Thread blocks that a GPU's sums beside the copy engines may use; 0: 64 for short calls, 16 "
     "to 48 for those that last, so that the other multiprocessors are left to the user.",
     kTuning},
    {"BRAID_HOST_ID", OptionType::kString, "",
     "Name of this host instead of the real one, so that ranks of one machine can pretend to be on "
     "several.",
     kTuning},
    {"BRAID_JOB_TOKEN", OptionType::kString, "",
     "Secret shared by the ranks of one job; proved by HMAC, never sent and never printed."},
    {"BRAID_LINKS", OptionType::kString, "auto",
     "Links to use: auto, or a comma list of shm, staged, rdma, rdma:PROVIDER:ADDRESS."},
    {"BRAID_LINK_CAP", OptionType::kString, "",
     "Holds a link between GPUs to a rate in each direction, for experiments: nvlink:147 (GB/s). "
     "Messages that go by packets are not held.",
     kTuning},
    {"BRAID_LOG", OptionType::kString, "warn",
     "Log level, with folders set apart: warn or warn,coll:trace,plan:debug."},
    {"BRAID_LOG_FILE", OptionType::kString, "",
     "File at whose end log lines are put instead of standard error; %r is the rank, %h the host, "
     "%p the process."},
    {"BRAID_METRICS_PORT", OptionType::kInteger, "0",
     "Port on 127.0.0.1 at which a process serves its counts for Prometheus, plus its rank; 0 for "
     "none."},
    {"BRAID_NCCL", OptionType::kBool, "on",
     "Under NCCL's name (libbraid-nccl.so): take calls over; off hands everything to NCCL."},
    {"BRAID_NCCL_GROUPED", OptionType::kBool, "off",
     "Promise: when a rank groups ncclSend and ncclRecv of one size to and from every rank, blocks "
     "one behind the other, all ranks do, so that the group is an all-to-all."},
    {"BRAID_NCCL_LEAST", OptionType::kBytes, "0",
     "Smallest message (all ranks' blocks together) that is taken over from NCCL.", kTuning},
    {"BRAID_NCCL_MEET", OptionType::kDuration, "10min",
     "How long the ranks of a communicator wait for each other at its first call, before it is "
     "left "
     "to NCCL. A rank whose process has ended is not waited for.",
     kTuning},
    {"BRAID_NCCL_MOST", OptionType::kBytes, "0",
     "Largest message that is taken over from NCCL; 0 for no limit.", kTuning},
    {"BRAID_NCCL_NODES", OptionType::kString, "off",
     "all_gather and reduce_scatter of NCCL communicators over several nodes in two stages "
     "(docs/nodes.md): off, auto (where a race with NCCL gives them to braid) or on (always). "
     "Opens "
     "a port on NCCL's bootstrap address."},
    {"BRAID_NCCL_NODES_EXACT", OptionType::kBool, "off",
     "Over several nodes: sums of fp16, bf16 and fp8 are fp32 until their last step, and rounded "
     "once. Twice or four times the bytes inside and between nodes (docs/nodes.md)."},
    {"BRAID_NCCL_OPS", OptionType::kString, "all",
     "What is taken over from NCCL: all, none, or a comma list of all_reduce, all_gather, "
     "reduce_scatter, broadcast, all_to_all. all: what a race with NCCL gives to braid "
     "(docs/nccl.md). "
     "Operations in a list are taken over at every size, whoever is faster."},
    {"BRAID_NCCL_REAL", OptionType::kString, "",
     "Absolute path of the real libnccl.so.2; empty looks for it."},
    {"BRAID_NCCL_SHARED", OptionType::kBool, "on",
     "Take over communicators of which one process has several GPUs (ncclCommInitAll, a thread per "
     "GPU, nccl-tests -g)."},
    {"BRAID_NCCL_TIMEOUT", OptionType::kDuration, "24h",
     "Deadline of calls taken over from NCCL, instead of BRAID_TIMEOUT: NCCL has none, and a rank "
     "may write a checkpoint meanwhile. One whose process has ended is not waited for."},
    {"BRAID_NODES", OptionType::kString, "auto",
     "all_gather and sums among CPUs of several nodes with as many ranks on each: auto, in two "
     "stages, inside the nodes and between them; flat, straight from rank to rank; or exact, in "
     "two "
     "stages whose sums are fp32 until the end, and rounded once. Sums have other bits by each "
     "(docs/nodes.md), so all ranks and runs need the same."},
    {"BRAID_NVTX", OptionType::kBool, "off",
     "Give every call a range in the profiler that NVTX_INJECTION64_PATH names, as nsys sets it."},
    {"BRAID_PACE", OptionType::kString, "",
     "Slow links down on purpose: link=rate[@latency],... such as "
     "shm=400MB/s,staged=200MB/s@50us.",
     kTuning},
    {"BRAID_RDMA_ADDRS", OptionType::kString, "127.0.0.1",
     "Local addresses for rdma links, a comma list; one lane each. Not set, loopback on one host, "
     "else the one on the way to MASTER_ADDR."},
    {"BRAID_RDMA_PROVIDER", OptionType::kString, "tcp",
     "libfabric provider of rdma links, such as tcp, efa or verbs. shm is refused: a killed rank "
     "may "
     "hold its lock for ever."},
    {"BRAID_SLOT", OptionType::kBytes, "64KiB",
     "Size of one slot of a lane; a piece never exceeds it.", kTuning},
    {"BRAID_STALL", OptionType::kDuration, "250ms",
     "How long a lane may make no progress before its pieces go over another lane.", kTuning},
    {"BRAID_STORE_PORT", OptionType::kInteger, "0", "Port of rank 0's store; 0 means MASTER_PORT."},
    {"BRAID_TIMEOUT", OptionType::kDuration, "30s",
     "Deadline of every call; a peer that is late by then is an error."},
    {"BRAID_TRACE", OptionType::kString, "",
     "File that gets a timeline of the calls for Perfetto when a comm is closed; a job's rank is "
     "put in front of .json where it has no %r."},
    {"BRAID_TRACE_CALLS", OptionType::kInteger, "0",
     "Calls of a comm that are kept in memory for traces and flight records, 4194304 at most; 0: "
     "65536 with BRAID_TRACE, 2000 with BRAID_FLIGHT_RECORD, else none.",
     kTuning},
    {"BRAID_TUNE", OptionType::kString, "auto",
     "Tuning at start, and under NCCL's name the race with it: auto (measure unless cached), off "
     "or "
     "force."},
    {"BRAID_TUNE_TIME", OptionType::kDuration, "8s",
     "Time that tuning may take at start; on GPUs for the host link, again for a NIC, and for all "
     "races of a communicator with NCCL, three times as long over nodes.",
     kTuning},
};

const Option* find_option(std::string_view name) {
  const auto it = std::lower_bound(
      std::begin(kOptions), std::end(kOptions), name,
      [](const Option& option, std::string_view wanted) { return option.name < wanted; });
  return it != std::end(kOptions) && it->name == name ? it : nullptr;
}

const Option& nearest_option(std::string_view name) {
  return *std::min_element(std::begin(kOptions), std::end(kOptions),
                           [name](const Option& a, const Option& b) {
                             return edit_distance(a.name, name) < edit_distance(b.name, name);
                           });
}

Result<bool> parse_bool(std::string_view text) {
  if (text == "on" || text == "1" || text == "true" || text == "yes") return true;
  if (text == "off" || text == "0" || text == "false" || text == "no") return false;
  return invalid_argument("'{}' is not a switch; write on or off", printable(text));
}

Result<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec == std::errc() && read.ptr == end && value >= 0) return value;
  return invalid_argument("'{}' is not a whole number from 0 up", printable(text));
}

Status check_value(OptionType type, std::string_view value) {
  switch (type) {
    case OptionType::kString: return {};
    case OptionType::kBool: return parse_bool(value).status();
    case OptionType::kInteger: return parse_integer(value).status();
    case OptionType::kBytes: return parse_bytes(value).status();
    case OptionType::kDuration: return parse_duration_ns(value).status();
  }
  return internal_error("option type {} is outside the enum", static_cast<int>(type));
}

// No call and no meeting of ranks can be done in no time at all.
Status check_deadline(const Option& option, std::string_view value) {
  if (option.name != std::string_view("BRAID_TIMEOUT")) return {};
  BRAID_ASSIGN_OR_RETURN(const int64_t timeout_ns, parse_duration_ns(value));
  if (timeout_ns > 0) return {};
  return invalid_argument("{}: asked for '{}', a deadline is above 0", option.name,
                          printable(value));
}

std::string unknown_name(std::string_view name) {
  return fmt::format("{} is no option of braid; the nearest name is {}", printable(name),
                     nearest_option(name).name);
}

// Empty in a program that runs with rights that its caller has not (setuid, file capabilities):
// options name files that are written and libraries that are loaded.
std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> pairs;
  if (getauxval(AT_SECURE) != 0) return pairs;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      pairs.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

const Option& typed_option(std::string_view name, OptionType type) {
  const Option* option = find_option(name);
  BRAID_CHECK(option != nullptr, "option {} is not in the registry", name);
  BRAID_CHECK(option->type == type, "option {} has type {}, read as type {}", name,
              static_cast<int>(option->type), static_cast<int>(type));
  return *option;
}

}  // namespace

std::span<const Option> all_options() { return kOptions; }

Config::Config() = default;

Result<Config> Config::from_environment(std::vector<std::string>* warnings) {
  return from_pairs(environment(), warnings);
}

Result<Config> Config::from_pairs(const std::map<std::string, std::string>& pairs,
                                  std::vector<std::string>* warnings) {
  Config config;
  for (const auto& [name, value] : pairs) {
    if (!name.starts_with("BRAID_")) continue;
    const bool is_known = find_option(name) != nullptr;
    if (is_known && !value.empty())
      BRAID_RETURN_IF_ERROR(config.set(name, value));
    else if (!is_known && warnings)
      warnings->push_back(unknown_name(name));
  }
  return config;
}

Status Config::set(std::string_view name, std::string_view value) {
  const Option* option = find_option(name);
  if (!option) return invalid_argument("{}", unknown_name(name));
  BRAID_RETURN_IF_ERROR(check_value(option->type, value).with_context(name));
  BRAID_RETURN_IF_ERROR(check_deadline(*option, value));
  values_.insert_or_assign(std::string(name), std::string(value));
  return {};
}

bool Config::is_set(std::string_view name) const { return values_.find(name) != values_.end(); }

const std::string& Config::text_of(const Option& option) const {
  // Defaults live for ever as strings, so that text() can hand out a reference either way.
  static const auto* const kDefaults = [] {
    auto* made = new std::map<std::string, std::string, std::less<>>;
    for (const Option& each : kOptions) made->emplace(each.name, each.default_value);
    return made;
  }();
  const auto it = values_.find(std::string_view(option.name));
  return it != values_.end() ? it->second : kDefaults->find(std::string_view(option.name))->second;
}

// set() has parsed every value and a test every default, so the reads below cannot fail.
const std::string& Config::text(std::string_view name) const {
  return text_of(typed_option(name, OptionType::kString));
}

bool Config::flag(std::string_view name) const {
  return parse_bool(text_of(typed_option(name, OptionType::kBool))).value();
}

int64_t Config::integer(std::string_view name) const {
  return parse_integer(text_of(typed_option(name, OptionType::kInteger))).value();
}

uint64_t Config::bytes(std::string_view name) const {
  return parse_bytes(text_of(typed_option(name, OptionType::kBytes))).value();
}

int64_t Config::duration_ns(std::string_view name) const {
  return parse_duration_ns(text_of(typed_option(name, OptionType::kDuration))).value();
}

}  // namespace braid
