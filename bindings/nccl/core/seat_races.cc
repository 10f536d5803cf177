// How a seat finds out who is faster in an operation: all ranks meet at a call, braid's Device and,
// over nodes, its rails are made ready, and braid and NCCL run the same calls by turns
// (hold_race.h).
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/core/group_watchdog.h"
#include "bindings/nccl/core/hold_race.h"
#include "bindings/nccl/core/seat.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "comm/state.h"

namespace braid::nccl {
namespace {

// For a rank that is late at a call: it may be writing a checkpoint, or never come.
constexpr int64_t kRaceMeeting = 60_s;

/// The choice where there is no race: braid has all sizes of the range.
braid_nccl_choice all_of(SizeRange sizes) {
  const uint32_t bits = (uint32_t{1} << sizes.end) - (uint32_t{1} << sizes.begin);
  return {bits, bits};
}

}  // namespace

// Ranks come to a race at the same call, but not at the same time. And a program may have them wait
// for each other crosswise, at calls of two communicators that NCCL would let through. So they wait
// a while, and then all of them race, or none.
Result<bool> Seat::all_come_to(int op, Messages messages) {
  const auto is_over = [this] { return is_aborted_ || group_->broken(); };
  const int64_t patience_ns = std::min(kRaceMeeting, config_.duration_ns("BRAID_NCCL_MEET"));
  const size_t slot = 2 * static_cast<size_t>(op) + (messages.is_large ? 1 : 0) +
                      (messages.in_windows ? size_t{2} * BRAID_NCCL_NUM_OPS : 0);
  const int num_ranks = group_->size();
  static_assert(4 * BRAID_NCCL_NUM_OPS <= Roll::kNumMeetings);
  bool all_came = false;
  if (is_over_nodes_) {
    BRAID_ASSIGN_OR_RETURN(all_came, across_->meet(slot, patience_ns, is_over));
  } else {
    all_came = roll_.meet(slot, num_ranks, Deadline::after_ns(patience_ns), is_over);
  }
  if (!all_came)
    log::warn("nccl", "an operation is left to NCCL: not all of {} ranks came to its call in {}",
              num_ranks, format_ns(patience_ns));
  return all_came;
}

// Once all ranks are there: time for tuning, also of a NIC, for the race, over nodes for two, and
// some more for steps that have no limit of their own.
Deadline Seat::race_deadline() const {
  return Deadline::after_ns(kRaceMeeting + 4 * config_.duration_ns("BRAID_TUNE_TIME"));
}

Status Seat::race(int op, Messages messages, const braid_nccl_real* real,
                  braid_nccl_choice& choice) {
  if (op < 0 || op >= BRAID_NCCL_NUM_OPS) return internal_error("nccl operation {} is unknown", op);
  if (is_lost()) return across_->lost();
  if (is_aborted_) return unavailable("aborted");
  if (messages.in_windows && is_over_nodes_)
    return internal_error("a race in windows between nodes");
  const Status raced = race_with_others(static_cast<braid_nccl_op>(op), messages, real, choice);
  if (!raced.ok()) group_->report(raced);  // ranks that still wait for this one wait in vain
  return raced;
}

Status Seat::race_with_others(braid_nccl_op op, Messages messages, const braid_nccl_real* real,
                              braid_nccl_choice& choice) {
  BRAID_ASSIGN_OR_RETURN(const bool all_came, all_come_to(op, messages));
  if (!all_came) return is_aborted_ ? unavailable("aborted") : Status();
  if (is_over_nodes_) {
    BRAID_ASSIGN_OR_RETURN(const bool is_connected, connect_nodes());
    if (!is_connected) return {};
  }
  return race_here(op, messages, real, choice);
}

/// Rails are made at the first call that needs them. False, on all ranks: the communicator stays
/// NCCL's.
Result<bool> Seat::connect_nodes() {
  if (across_->is_connected() || has_no_rails_) return !has_no_rails_;
  AcrossNodes::Agreed agreed;
  BRAID_RETURN_IF_ERROR(with_device([&](comm::Device& device) -> Status {
    BRAID_ASSIGN_OR_RETURN(agreed, across_->connect(*rails_, *group_, device, race_deadline()));
    return {};
  }));
  has_no_rails_ = agreed.why_not.has_value();
  if (has_no_rails_)
    log::warn("nccl", "a communicator over {} nodes is left to NCCL: {}", across_->map().num_nodes,
              agreed.why_not->message());
  return !has_no_rails_;
}

// Memory for large messages stays if braid wins some sizes.
Status Seat::race_here(braid_nccl_op op, Messages messages, const braid_nccl_real* real,
                       braid_nccl_choice& choice) {
  const comm::Unobserved racing(comm_->state().observer.get());
  BRAID_ASSIGN_OR_RETURN(const auto watchdog, GroupWatchdog::begin(*group_, race_deadline()));
  return with_device([&](comm::Device& device) -> Status {
    choice = all_of(SizeRange::of(messages.is_large));
    if (real != nullptr) {
      BRAID_ASSIGN_OR_RETURN(choice, race_on(device, op, messages, *real));
    }
    if (!messages.is_large) return {};
    if (choice.won != 0) {
      BRAID_ASSIGN_OR_RETURN(keeps_room_, make_room(device));
      if (!keeps_room_) choice = {};
    }
    return keeps_room_ ? Status() : give_back_room(device);
  });
}

/// Also on a node that has no such memory, since all ranks take part.
Status Seat::give_back_room(comm::Device& device) {
  const Status given = device.arena().give_back_room(race_deadline());
  BRAID_ASSIGN_OR_RETURN(const auto agreed, all_through(given, race_deadline()));
  return agreed.why_not.value_or(Status());
}

Result<braid_nccl_choice> Seat::race_on(comm::Device& device, braid_nccl_op op, Messages messages,
                                        const braid_nccl_real& real) {
  OverNodes nodes;
  if (is_over_nodes_)
    nodes = {[this](const braid_nccl_call& call) { return across_->run(call); },
             [this](sys::Stream stream) { return across_->barrier(stream); },
             fmt::format("{} x {}", across_->map().num_nodes, across_->map().per_node)};
  const Entrants entrants{device,
                          *group_,
                          real_calls_,
                          real,
                          op,
                          SizeRange::of(messages.is_large),
                          messages.in_windows,
                          is_over_nodes_ ? &nodes : nullptr};
  const RaceTerms terms{config_, race_deadline(), race_budget_.next_ns(),
                        [&] { return messages.is_large ? make_room(device) : Result<bool>(true); }};
  BRAID_ASSIGN_OR_RETURN(const Held held, hold_race(entrants, terms));
  race_budget_.took(held.elapsed_ns);
  return held.choice;
}

// Every rank has the same verdict. A rank without memory is no error: NCCL gets the call then.
Result<bool> Seat::make_room(comm::Device& device) {
  const Status made = coll::device::make_room(comm_->state());
  BRAID_ASSIGN_OR_RETURN(const auto agreed, all_through(made, race_deadline()));
  if (!agreed.why_not) return device.arena().has_room();
  if (device.arena().has_room() && !made.ok()) return made;
  if (group_->broken()) return group_->fate();
  log::info("nccl", "gpu {}: no memory for large messages, which are left to NCCL: {}", device_,
            agreed.why_not->message());
  return false;
}

}  // namespace braid::nccl
