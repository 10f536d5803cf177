#include "bindings/nccl/reasons.h"

#include "base/text.h"

namespace braid::nccl {

namespace {

constexpr size_t kMostKinds = 64, kMostChars = 200;
constexpr const char* kWords[] = {
    "its communicator was made out of braid's sight",
    "its communicator is NCCL's, or still being made",
    "over several nodes all_gather and reduce_scatter alone are taken over",
    "a send or receive",
    "a reduction that the program made",
    "BRAID_NCCL_OPS, BRAID_NCCL_LEAST, BRAID_NCCL_MOST or the limits of BRAID_TUNE=off",
    "captured before its communicator was set up for it",
    "NCCL is as fast, or memory is missing",
};
static_assert(std::size(kWords) == kNumLeft);

/// In quotes. What comes here is printable.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : printable(text, kMostChars)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

Left why_left(const Settings& settings, const Entry* entry, const Call& call) {
  if (entry == nullptr) return Left::kUnseen;
  if (entry->state() == Entry::State::kHandedOn || entry->num_ranks() == 0)
    return Left::kCommunicator;
  if (is_exchange(call)) return Left::kMessage;
  if (call.redop >= kNumRedops) return Left::kUsersOperator;
  if (entry->is_over_nodes() && !goes_over_nodes(settings, call, entry->num_ranks()))
    return Left::kOverNodes;
  if (!is_wanted(settings, call, entry->num_ranks())) return Left::kSettings;
  const uint64_t bytes = bytes_of(call, entry->num_ranks());
  if (is_all_to_all_in_place(call) && entry->windows().has(shared_memory(call), bytes))
    return Left::kFaster;
  for (const bool in_windows : {false, true}) {
    const Chosen& chosen = entry->chosen(call.op, in_windows);
    if (chosen.is_known[0] || chosen.is_known[1]) return Left::kFaster;
  }
  return Left::kCaptured;
}

void Reasons::note_taken(bool is_over_nodes) {
  const std::lock_guard lock(mutex_);
  ++num_taken_;
  num_over_nodes_ += is_over_nodes ? 1 : 0;
}

void Reasons::note_left(const std::string& why) {
  const std::lock_guard lock(mutex_);
  const bool is_known = left_.size() < kMostKinds || left_.contains(why);
  ++left_[is_known ? why : "other reasons"];
}

std::string Reasons::json() const {
  const std::lock_guard lock(mutex_);
  const auto list = [](const auto& counts) {
    std::string text;
    for (const auto& [why, count] : counts)
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", quoted(why), count);
    return "{" + text + "}";
  };
  std::map<std::string, uint64_t> calls;
  for (size_t i = 0; i < kNumLeft; ++i)
    if (const uint64_t count = calls_[i].load(); count > 0) calls[kWords[i]] = count;
  return fmt::format(
      R"({{"communicators": {{"taken": {}, "taken_over_nodes": {}, "left": {}}}, "calls": {}}})",
      num_taken_, num_over_nodes_, list(left_), list(calls));
}

}  // namespace braid::nccl
