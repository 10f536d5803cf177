#include "coll/device/share_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/units.h"
#include "coll/device/tune.h"
#include "coll/tuning_cache.h"
#include "fabric/hash.h"
#include "group/agree.h"

namespace braid::coll::device {

namespace {

// Counts changes of the host ring and of what runs beside it: shares of other code say nothing.
// 8: some of those before were measured among other programs' work.
constexpr int kCodeRevision = 8;
/// Whether shares were found under an option: all that say how calls go. How often a call is timed
/// later is none of them.
bool is_tuned_under(std::string_view option) {
  return (option.starts_with("BRAID_GPU_") && option != "BRAID_GPU_SAMPLE") ||
         option == "BRAID_LINK_CAP";
}

/// Alike for 1MiB and 1048576.
std::string value_of(const Config& config, const Option& option) {
  switch (option.type) {
    case OptionType::kBytes: return fmt::format("{}", config.bytes(option.name));
    case OptionType::kInteger: return fmt::format("{}", config.integer(option.name));
    case OptionType::kBool: return config.flag(option.name) ? "on" : "off";
    default: return config.text(option.name);
  }
}

// Rank 0's word to all in place of a cached text.
constexpr const char* kBusy = "busy";
constexpr int64_t kBusyFor_ns = 60'000'000'000;

/// By key, when tuning was last given up in this process. Never destroyed: a comm may be made later
/// than static objects are.
struct Busy {
  std::mutex mutex;
  std::map<std::string, int64_t> since_ns;
};
Busy& busy() {
  static Busy* const the = new Busy;
  return *the;
}

void note_busy(const std::string& key) {
  const std::lock_guard lock(busy().mutex);
  busy().since_ns[key] = now_ns();
}
bool is_busy(const std::string& key) {
  const std::lock_guard lock(busy().mutex);
  const auto found = busy().since_ns.find(key);
  return found != busy().since_ns.end() && now_ns() - found->second < kBusyFor_ns;
}

/// Rank 0's text, kBusy, or nothing: measure.
std::string find_shares(const comm::Comm::State& state, const std::string& path,
                        const std::string& key, const TuneWork& work) {
  const auto holds = [&](const std::string& text) -> Status {
    BRAID_ASSIGN_OR_RETURN(const LinkShares shares, parse_shares(text, key));
    const int64_t more_ns = work.time_ns / 10 * 9;  // not by the time that a start took until here
    if (shares.ended_ns == 0 || shares.ended_ns >= more_ns) return {};
    return invalid_argument("gpu tuning: ended after {}, and there is {} now",
                            format_ns(shares.ended_ns), format_ns(work.time_ns));
  };
  const std::string text = find_tuning(state.config, state.rank(), path, holds);
  const bool may_wait =
      state.rank() == 0 && text.empty() && state.config.text("BRAID_TUNE") != "force";
  return may_wait && is_busy(key) ? kBusy : text;
}

/// Collective. Ranks have different options, and came here at different times.
Result<int64_t> least_of_all(const comm::Comm::State& state, Deadline deadline, int64_t own_ns) {
  BRAID_ASSIGN_OR_RETURN(const auto all, group::exchange_numbers(*state.group, "gpu tuning time",
                                                                 {&own_ns, 1}, deadline));
  int64_t least_ns = own_ns;
  for (const std::vector<int64_t>& of_rank : all) least_ns = std::min(least_ns, of_rank[0]);
  return least_ns;
}

void save(const std::string& path, const std::string& key, const LinkShares& shares) {
  const std::string text = shares_to_json(key, shares);
  constexpr const char* kWhat = "these GPUs";
  if (shares.ended_ns == 0) return keep_tuning(path, text, kWhat);
  keep_cut_off_tuning(path, text, kWhat, [&](const std::string& other) {
    const auto kept = parse_shares(other, key);
    return kept.ok() && (kept->ended_ns == 0 || kept->ended_ns > shares.ended_ns);
  });
}

Result<bool> measure_and_save(comm::Device& device, comm::DeviceLink& link,
                              comm::Comm::State& state, Deadline deadline, const TuneWork& work,
                              const std::string& path, const std::string& key) {
  BRAID_ASSIGN_OR_RETURN(const TuneEnd end,
                         tune_shares(device, link, *state.group, deadline, work));
  if (end == TuneEnd::kDisturbed) {
    state.note_event("gpu tuning given up: other work on these GPUs");
    note_busy(key);
    return false;
  }
  LinkShares shares;
  if (end == TuneEnd::kTimeOver) {
    state.note_event("gpu tuning ended by BRAID_TUNE_TIME");
    shares.ended_ns = std::max<int64_t>(work.time_ns, 1);
  }
  for (const plan::Op op : plan::kAllOps)
    shares.of_op[static_cast<size_t>(op)] = link.shares().tuned(op);
  if (end != TuneEnd::kNoMemory && state.rank() == 0) save(path, key, shares);
  return true;
}

/// The first one beside the base link has no name in it.
std::string file_name(const comm::DeviceLink& link, const std::string& key) {
  return link.index() == 1 ? "gpu-" + key : fmt::format("gpu-{}-{}", link.facts().name, key);
}

}  // namespace

std::string shares_key(const std::vector<std::string>& gpus, const Config& config) {
  std::string text = fmt::format("{} {}\n", kSharesFormat, kCodeRevision);
  for (const std::string& gpu : gpus) text += gpu + "\n";
  for (const Option& option : all_options())
    if (is_tuned_under(option.name))
      text += fmt::format("{}={}\n", option.name, value_of(config, option));
  return fabric::text_hash(text);
}

Result<bool> ensure_shares(comm::Device& device, comm::DeviceLink& link, comm::Comm::State& state,
                           Deadline deadline, const TuneWork& work) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, device.cuda().device(device.ordinal()));
  BRAID_ASSIGN_OR_RETURN(
      const auto gpus,
      state.group->exchange("gpu tuning of", facts.name + " " + facts.pci_address, deadline));
  TuneWork agreed = work;
  BRAID_ASSIGN_OR_RETURN(agreed.time_ns, least_of_all(state, deadline, work.time_ns));
  const std::string key = shares_key(gpus, state.config);
  const std::string path = tuning_path(state.config, file_name(link, key));
  BRAID_ASSIGN_OR_RETURN(
      const auto texts,
      state.group->exchange("gpu tuning cache", find_shares(state, path, key, agreed), deadline));
  if (texts.front() == kBusy) {
    state.note_event("gpu tuning left out: these GPUs were busy less than a minute ago");
    return false;
  }
  if (texts.front().empty())
    return measure_and_save(device, link, state, deadline, agreed, path, key);
  // Rank 0's file, which it has compared with its key: a rank may have options for itself.
  BRAID_ASSIGN_OR_RETURN(const LinkShares shares, parse_shares(texts.front(), {}));
  for (const plan::Op op : plan::kAllOps)
    link.shares().set_tuned(op, shares.of_op[static_cast<size_t>(op)]);
  state.note_event("gpu tuning read from the cache");
  return true;
}

}  // namespace braid::coll::device
