// Races: when an operation is called first on a communicator, and when its first large message comes,
// braid and the real library are timed (core/race.h), and calls go to who wins.
//
// That is when all ranks have come to the same call of this communicator, and none of them can have
// enqueued another one on it: the race's own calls of NCCL meet each other, on every rank. In a
// group it is behind the real group's end, where what was handed on has been enqueued. It is never
// in a capture. Until then, and where it comes to nothing, NCCL has the calls.
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/choice.h"
#include "bindings/nccl/inside.h"
#include "bindings/nccl/shim.h"

namespace braid::nccl {

namespace {

/// Of an operation in which there is no race any more: the seat answers its calls with the error.
constexpr braid_nccl_choice kAllSizes{kAllRaced, kAllRaced};
constexpr int64_t kPatience = 60_s;  // for a call that the library makes in the background

struct Racer {
  Shim* shim;
  Entry* entry;
  NcclComm comm;
};

/// What becomes of a call that answered `now`, when the library is through with it, as far as the
/// host goes: it may do things in the background. ask(&now) answers an NcclResult.
template <typename Ask>
NcclResult wait_for_end(NcclResult now, const Ask& ask) {
  const Deadline patience = Deadline::after_ns(kPatience);
  const ReentryGuard guard;
  while (now == NcclResult::kInProgress && !patience.passed()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    const NcclResult asked = ask(&now);
    if (asked != NcclResult::kSuccess) return asked;
  }
  return now;
}

}  // namespace

/// What must be decided before a call. Between the largest small size and the smallest large one
/// both must be won, so that a large call asks about both.
Shim::Races Shim::races_before(const Entry& entry, const Call& call) const {
  const bool in_windows = is_in_windows(entry, call);
  if (in_windows && is_all_to_all_in_place(call)) return {};
  // Over nodes rails are made there, too, whoever decides.
  const bool may_go_over_nodes = entry.state() == Entry::State::kUndecided &&
                                 goes_over_nodes(settings_, call, entry.num_ranks());
  const bool is_raced =
      settings_.chosen_by == ChosenBy::kRace || entry.is_over_nodes() || may_go_over_nodes;
  const Chosen& chosen = entry.chosen(call.op, in_windows);
  Races races;
  if (is_raced && !chosen.is_known[0]) races.insert({call.op, false, in_windows});
  if (is_large(bytes_of(call, entry.num_ranks())) && !chosen.is_known[1])
    races.insert({call.op, true, in_windows});
  return races;
}

/// Whether a call that is_wanted() goes to braid. Of a communicator that is settled.
bool Shim::is_ours(const Entry& entry, const Call& call) const {
  if (entry.state() != Entry::State::kTaken) return false;
  const uint64_t bytes = bytes_of(call, entry.num_ranks());
  const bool in_windows = is_in_windows(entry, call);
  // Braid puts what it overwrites aside first; NCCL does not, and such calls in windows were up to 8 %
  // slower (records/nccl_tests_windows_h100_2.json).
  if (in_windows && is_all_to_all_in_place(call)) return false;
  const Chosen& chosen = entry.chosen(call.op, in_windows);
  if (entry.is_over_nodes())
    return goes_over_nodes(settings_, call, entry.num_ranks()) && is_braids(chosen.choice, bytes);
  if (settings_.chosen_by == ChosenBy::kRace) return is_braids(chosen.choice, bytes);
  if (entry.has_sharp() && is_left_to_sharp(settings_, call)) return false;
  return !is_large(bytes) || chosen.choice.won != 0;  // there is memory for it
}

void Shim::race_all(Entry& entry, NcclComm comm, const Races& races) {
  for (const Race& each : races)
    if (entry.state() == Entry::State::kTaken && !is_known(entry, each)) race(entry, comm, each);
}

void Shim::race(Entry& entry, NcclComm comm, const Race& race) {
  Racer racer{this, &entry, comm};
  const auto take_memory = [](void* of, uint64_t bytes, void** memory) {
    const ReentryGuard guard;
    return static_cast<int>(static_cast<Racer*>(of)->shim->real_.mem_alloc(memory, bytes));
  };
  const auto give_memory_back = [](void* of, void* memory) {
    const ReentryGuard guard;
    return static_cast<int>(static_cast<Racer*>(of)->shim->real_.mem_free(memory));
  };
  const auto close_window = [](void* of, void* window) {
    const Racer& from = *static_cast<Racer*>(of);
    const ReentryGuard guard;
    return static_cast<int>(from.shim->real_.window_deregister(from.comm, window));
  };
  braid_nccl_real behind{
      &racer,      0, entry.config(), run_real, take_memory, give_memory_back, open_window_of_race,
      close_window};
  if (real_.version(&behind.version) != NcclResult::kSuccess) behind.version = 0;
  const bool is_raced = settings_.chosen_by == ChosenBy::kRace &&
                        !(entry.is_over_nodes() && settings_.nodes == Nodes::kOn);
  (void)end_of(entry, comm, NcclResult::kInProgress);  // of what a group has just handed on
  braid_nccl_choice choice{};
  ErrorText why;
  const int code =
      entry.core().race(entry.seat(), static_cast<int>(race.op), race.is_large ? 1 : 0,
                        race.in_windows ? 1 : 0, is_raced ? &behind : nullptr, &choice, why);
  if (code != 0 && !entry.has_run() && !entry.is_over_nodes()) {
    entry.decide(Entry::State::kHandedOn);
    return say_left(entry, why.text());
  }
  if (code != 0) {  // what was taken over is as lost as the seat: no way back
    entry.fail(why.text());
    choice = kAllSizes;
  }
  // Nobody has measured it, and nobody has asked for it.
  const bool is_unknown = entry.is_over_nodes() && settings_.chosen_by == ChosenBy::kLimits &&
                          settings_.nodes == Nodes::kAuto;
  if (is_unknown && code == 0) choice = {};
  Chosen& chosen = entry.chosen(race.op, race.in_windows);
  chosen.choice.measured |= choice.measured;
  chosen.choice.won |= choice.won;
  chosen.is_known[race.is_large ? 1 : 0] = true;
}

/// A call of the race. An ncclResult_t.
int Shim::run_real(void* racer, const braid_nccl_call* call) {
  const Racer& to = *static_cast<const Racer*>(racer);
  const Call asked{static_cast<Op>(call->op),
                   call->send,
                   call->recv,
                   call->count,
                   call->dtype,
                   call->redop,
                   call->root,
                   to.comm,
                   call->stream};
  return static_cast<int>(to.shim->end_of(*to.entry, to.comm, to.shim->forward(asked)));
}

/// Libraries that work in the background answer success at once, and write the handle later. One that
/// never says that it is through may write it at any time.
int Shim::open_window_of_race(void* racer, void* memory, uint64_t bytes, void** window) {
  const Racer& to = *static_cast<Racer*>(racer);
  auto made = std::make_unique<void*>(nullptr);
  NcclResult now;
  {
    const ReentryGuard guard;
    now = to.shim->real_.window_register(to.comm, memory, bytes, made.get(), kSymmetric);
  }
  const bool is_begun = is_good(now);
  if (is_begun) now = to.shim->end_of(*to.entry, to.comm, NcclResult::kInProgress);
  // After an abort nobody asks NCCL any more: it may be at the window still.
  if (is_begun && now != NcclResult::kSuccess && to.entry->is_given_up())
    now = NcclResult::kInProgress;
  *window = now == NcclResult::kSuccess ? *made : nullptr;
  if (now == NcclResult::kInProgress) to.shim->keep_handle(std::move(made));
  return static_cast<int>(now);
}

void Shim::keep_handle(std::unique_ptr<void*> handle) {
  const std::lock_guard lock(handles_mutex_);
  handles_.push_back(std::move(handle));
}

/// Of a rail that is being made: nobody else has it yet (core/nodes/nccl_rail.h asks about its calls).
NcclResult Shim::end_of(NcclComm rail, NcclResult now) {
  return wait_for_end(now, [&](NcclResult* next) { return real_.get_async_error(rail, next); });
}

/// Of a call on the program's communicator, which another thread of the program's may abort
/// meanwhile: then it is freed, and asked nothing more.
NcclResult Shim::end_of(Entry& entry, NcclComm comm, NcclResult now) {
  return wait_for_end(now, [&](NcclResult* next) {
    NcclResult asked = NcclResult::kRemoteError;
    (void)entry.unless_given_up([&] { asked = real_.get_async_error(comm, next); });
    return asked;
  });
}

}  // namespace braid::nccl
