#include "coll/device/share_cache.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "coll/device/tune.h"
#include "coll/tune/cache.h"
#include "fabric/hash.h"
#include "fabric/json_read.h"

namespace braid::coll::device {

namespace {

constexpr const char* kFormat = "braid gpu tuning";
constexpr uint64_t kVersion = 1;
// Counts changes of the host ring and of what runs beside it: shares of other code say nothing.
// 7: some of revision 6 were measured among other programs' work.
constexpr int kCodeRevision = 7;
constexpr size_t kMostTextBytes = 64 << 10;
constexpr size_t kMostNameBytes = 256;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

constexpr const char* kSizes[] = {"BRAID_GPU_DIRECT",  "BRAID_GPU_HOST_WINDOW", "BRAID_GPU_LINES",
                                  "BRAID_GPU_PACKETS", "BRAID_GPU_SCRATCH",     "BRAID_GPU_SLOT"};
constexpr const char* kNumbers[] = {"BRAID_GPU_LANES", "BRAID_GPU_SLOTS", "BRAID_GPU_SUM_BLOCKS"};

uint64_t in_parts(double share) { return static_cast<uint64_t>(std::lround(share * plan::kWhole)); }

double read_share(const fabric::JsonReader& value) {
  return static_cast<double>(value.integer(0, plan::kWhole)) / plan::kWhole;
}

comm::HostShare read_host_share(const fabric::JsonReader& value, plan::Op op) {
  const std::string name = value.child("op").text(kMostNameBytes);
  if (name != plan::op_name(op))
    value.fail(fmt::format("op is '{}', expected '{}'", name, plan::op_name(op)));
  comm::HostShare share;
  share.short_bytes = value.child("short_bytes").integer(0, kMostBytes);
  share.long_bytes = value.child("long_bytes").integer(share.short_bytes, kMostBytes);
  share.short_share = read_share(value.child("short_parts"));
  share.long_share = read_share(value.child("long_parts"));
  return share;
}

Status measure_and_save(comm::Device& device, comm::Comm::State& state, Deadline deadline,
                        const TuneWork& work, const std::string& path, const std::string& key) {
  BRAID_ASSIGN_OR_RETURN(const bool is_worth_keeping,
                         tune_host_shares(device, *state.group, deadline, work));
  if (!is_worth_keeping || state.rank() != 0) return {};
  HostShares shares;
  for (const plan::Op op : plan::kAllOps) shares[static_cast<size_t>(op)] = device.host_share(op);
  keep_tuning(path, shares_to_json(key, shares), "these GPUs");
  return {};
}

}  // namespace

std::string shares_key(const std::vector<std::string>& gpus, const Config& config) {
  std::string text = fmt::format("{} {}\n", kFormat, kCodeRevision);
  for (const std::string& gpu : gpus) text += gpu + "\n";
  for (const char* option : kSizes) text += fmt::format("{}={}\n", option, config.bytes(option));
  for (const char* option : kNumbers)
    text += fmt::format("{}={}\n", option, config.integer(option));
  text += config.text("BRAID_LINK_CAP");
  return fabric::text_hash(text);
}

std::string shares_to_json(const std::string& key, const HostShares& shares) {
  nlohmann::ordered_json json{{"format", kFormat}, {"version", kVersion}, {"key", key}};
  for (const plan::Op op : plan::kAllOps) {
    const comm::HostShare& share = shares[static_cast<size_t>(op)];
    json["shares"].push_back({{"op", plan::op_name(op)},
                              {"short_bytes", share.short_bytes},
                              {"long_bytes", share.long_bytes},
                              {"short_parts", in_parts(share.short_share)},
                              {"long_parts", in_parts(share.long_share)}});
  }
  return json.dump(1) + "\n";
}

Result<HostShares> parse_shares(std::string_view text, const std::string& key) {
  const auto root = fabric::JsonReader::parse(text, "gpu tuning", kMostTextBytes);
  const std::string format = root.child("format").text(kMostNameBytes);
  if (format != kFormat) root.fail(fmt::format("format is '{}', not '{}'", format, kFormat));
  (void)root.child("version").integer(kVersion, kVersion);
  const std::string found = root.child("key").text(kMostNameBytes);
  if (!key.empty() && found != key)
    root.fail(fmt::format("is of key '{}', expected '{}'", found, key));
  const fabric::JsonReader list = root.child("shares");
  const size_t size = list.size(plan::kNumOps);
  if (size != plan::kNumOps)
    list.fail(fmt::format("{} operations, expected {}", size, plan::kNumOps));
  HostShares shares;
  for (size_t i = 0; i < size && root.ok(); ++i)
    shares[static_cast<size_t>(plan::kAllOps[i])] = read_host_share(list.at(i), plan::kAllOps[i]);
  if (!root.ok()) return root.status();
  return shares;
}

Status ensure_host_shares(comm::Device& device, comm::Comm::State& state, Deadline deadline,
                          const TuneWork& work) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, device.cuda().device(device.ordinal()));
  BRAID_ASSIGN_OR_RETURN(
      const auto gpus,
      state.group->exchange("gpu tuning of", facts.name + " " + facts.pci_address, deadline));
  const std::string key = shares_key(gpus, state.config);
  const std::string path = tuning_path(state.config, "gpu-" + key);
  BRAID_ASSIGN_OR_RETURN(
      const auto texts, state.group->exchange("gpu tuning cache",
                                              find_tuning(state.config, state.rank(), path,
                                                          [&](const std::string& text) {
                                                            return parse_shares(text, key).status();
                                                          }),
                                              deadline));
  if (texts.front().empty()) return measure_and_save(device, state, deadline, work, path, key);
  // Rank 0's file, which it has compared with its key: a rank may have options for itself.
  BRAID_ASSIGN_OR_RETURN(const HostShares shares, parse_shares(texts.front(), {}));
  for (const plan::Op op : plan::kAllOps)
    device.set_host_share(op, shares[static_cast<size_t>(op)]);
  state.note_event("gpu tuning read from the cache");
  return {};
}

}  // namespace braid::coll::device
