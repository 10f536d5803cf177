#include "coll/host/call.h"

#include <algorithm>
#include <new>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "coll/host/notes.h"
#include "coll/host/wide_moves.h"
#include "coll/reduce/casts.h"
#include "comm/observe/observer.h"

namespace braid::coll {

namespace {

uint64_t largest_block(const Moves& m) {
  uint64_t largest = std::max(m.mine.bytes, m.reduced.bytes);
  for (const ConstBlock& part : m.parts) largest = std::max(largest, part.bytes);
  for (const Block& place : m.places) largest = std::max(largest, place.bytes);
  return largest;
}

// Senders and receivers must cut alike without asking each other, so the cell size follows from
// what the signature fixes. Counts of uneven forms are compared later, if at all: there a cell is as
// large as a piece may be.
uint32_t cell_bytes_for(const comm::Comm::State& state, const Moves& m) {
  uint32_t max_piece = UINT32_MAX;
  for (const comm::LinkState& link : state.links)
    max_piece = std::min(max_piece, link.lane->caps().max_piece_bytes);
  max_piece &= ~63U;  // a cell holds whole elements
  const uint64_t wanted = state.config.bytes("BRAID_CELL");
  if (m.signature.form == Form::kUneven || state.links.empty())
    return std::min<uint32_t>(max_piece, 64_KiB);
  if (wanted != 0)
    return static_cast<uint32_t>(
        std::min<uint64_t>(std::max<uint64_t>(wanted & ~63ULL, 64), max_piece));
  // Between nodes every piece is answered over the cable, too: 64 cells of a block of 1 MiB cost it
  // 3 % more, 16 cells 1 %, and are enough to keep two stages busy at once.
  const uint64_t fewer = goes_in_stages(state, m) ? 4 : 1;
  return plan::choose_cell_bytes(fewer * largest_block(m), max_piece);
}

plan::Plan plan_for_call(comm::Comm::State& state, uint64_t epoch, const Moves& m) {
  state.book.apply_until(epoch);
  state.probe_down_links();
  plan::Plan plan = state.plan_now({m.signature.op, m.bytes, state.size()});
  plan.shares = comm::without_links(plan.shares, state.local_up_mask());
  return plan;
}

}  // namespace

Call::Call(comm::Comm::State& state, const Moves& moves)
    : state_(state),
      moves_(moves),
      epoch_(++state.epoch),
      start_ns_(now_ns()),
      plan_(plan_for_call(state, epoch_, moves)),
      cell_bytes_(cell_bytes_for(state, moves)),
      outbox_(state, epoch_, cell_bytes_, plan_.shares,
              state.node_shares({moves.signature.op, moves.bytes, state.size()})),
      inbox_(state.links, state.size()),
      waiter_(state),
      stall_watch_(state, state.config.duration_ns("BRAID_STALL"), start_ns_),
      entries_(static_cast<size_t>(state.size())),
      entries_missing_(state.size() - 1),
      last_progress_ns_(start_ns_) {
  plan_.cell_bytes = cell_bytes_;
  if (moves_.parts_are_operands && has_stages()) {
    open_sums();
  } else if (moves_.reduced.bytes > 0) {
    reducer_.emplace(state.rank(), state.size(), moves_.parts[static_cast<size_t>(state.rank())],
                     moves_.reduced, cell_bytes_, moves_.element(), moves_.signature.redop);
  }
  data_seen_.resize(moves_.places.size());
  for (size_t r = 0; r < moves_.places.size(); ++r) {
    if (static_cast<int>(r) == state.rank()) continue;
    data_seen_[r].resize(num_cells(moves_.places[r].bytes, cell_bytes_));
    cells_missing_ += data_seen_[r].size();
  }
  operand_seen_.resize(reducer_ ? static_cast<size_t>(state.size()) : 0);
  for (size_t r = 0; r < operand_seen_.size(); ++r)
    operand_seen_[r].resize(num_cells(moves_.reduced.bytes, cell_bytes_));
  if (reducer_ && state.size() > 1) cells_missing_ += num_cells(moves_.reduced.bytes, cell_bytes_);
  if (sums_) cells_missing_ += sums_->num_cells_to_reduce();
}

bool Call::needs_peers() const {
  return entries_missing_ != 0 || (!discarding_ && cells_missing_ != 0) || !outbox_.empty() ||
         !outbox_.acked();
}

void Call::stop(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

Status Call::execute() {
  entry_bytes_ = make_entry();  // carries the report of the call before, which is overwritten next
  state_.report.links.assign(state_.links.size(), {});
  state_.report.start_ns = start_ns_;
  if (state_.size() == 1) {
    agreed_ = true;
    begin_local();
    while (copy_local()) {
    }
    finish_report();
    return status_;
  }
  send_entries();
  queue_moves();
  refuse_open_messages();
  // Passes between looks for trouble while things move; a pass is under a millisecond.
  constexpr int kWatchEvery = 256;
  for (int pass = 1; !done(); ++pass) {
    progress_lanes();
    bool moved = outbox_.pump();
    moved |= receive();
    moved = moved || copy_local();
    if (moved) {
      waiter_.reset();
    } else {
      (void)waiter_.wait();
    }
    if (!moved || pass % kWatchEvery == 0) watch();
    if (!status_.ok()) return status_;
  }
  progress_lanes();
  finish_report();
  return mismatch_;
}

// Before the outbox puts, and once more at the end, so that what was taken in is acknowledged at once.
// Behind this rank's next blocks, on the same connection of a slow cable, an ack takes tens of
// milliseconds, and its peer cannot leave the call for so long.
void Call::progress_lanes() {
  for (comm::LinkState& link : state_.links)
    (void)link.lane->progress();  // a lane may be busy and move nothing of ours
}

void Call::finish_report() {
  state_.report.epoch = epoch_;
  state_.report.plan = plan_;
  state_.report.duration_ns = now_ns() - start_ns_;
  state_.report_is_fresh = moves_.signature.form != Form::kBarrier && moves_.bytes > 0;
  if (state_.rank() != 0 || state_.size() == 1) return;
  comm::Observation seen;
  seen.up_mask = ~uint64_t{0};
  for (const auto& entry : entries_) {
    if (!entry) return;
    seen.up_mask &= entry->up_mask;
    if (entry->report_epoch != 0) seen.reports.push_back({entry->report_epoch, {}});
    for (const LinkReport& link : entry->report)
      seen.reports.back().links.push_back({link.bytes, link.finish_ns});
  }
  seen.report_plan = state_.previous_plan;
  state_.balance.observe(seen);
  state_.previous_plan = plan_;
}

namespace {

// A killed process takes its links with it, and a lane may notice before the group's monitor does.
// To say "no link is left" then would hide the cause, and our report of it would become every other
// rank's fate. The kernel closes a dead process's control connection within milliseconds, so a
// group that is still whole after this long has lost links, not a rank.
Status cause_of(Status status, const group::Group* group) {
  constexpr int64_t kNewsOfADeathNs = 500_ms;
  constexpr int64_t kLookEveryNs = 1_ms;
  if (status.code() != Code::kUnavailable || group == nullptr) return status;
  const Deadline deadline = Deadline::after_ns(kNewsOfADeathNs);
  while (!group->broken() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLookEveryNs));
  return group->broken() ? group->fate() : status;
}

}  // namespace

Status end_comm(comm::Comm::State& state, Status why) {
  why = cause_of(std::move(why), state.group.get());
  state.fatal = why;
  if (state.group) state.group->report(why);
  return why;
}

namespace {

// What a call has counted and said by then cannot be taken back: the others wait for the rest of it.
// So where memory runs out the comm ends, and every rank hears why at once.
Status run_out(comm::Comm::State& state, const Moves& moves) {
  state.spare.reset();  // for what is said now
  return exhausted("{} (call {}): rank {} has no memory left for it", to_words(moves.signature),
                   state.epoch, state.rank());
}

Status execute(std::optional<Call>& call, comm::Comm::State& state, const Moves& moves) {
  try {
    call.emplace(state, moves);
    const Status status = call->execute();
    return call->ends_comm(status) ? end_comm(state, status) : status;
  } catch (const std::bad_alloc&) {
    return end_comm(state, run_out(state, moves));
  }
}

Status run_observed(comm::Comm::State& state, const Moves& moves) {
  comm::Observed observed(state.observer.get(),
                          [&] { return note_of(moves, state.rank(), state.size()); });
  std::optional<Call> call;  // its memory goes when all was said
  Status status = execute(call, state, moves);
  observed.end(status, "lanes", [&] { return link_notes_of(state.report, status.ok()); });
  return status;
}

/// By BRAID_NODES=exact. Every rank's options are the same.
bool is_summed_wide(const comm::Comm::State& state, const Moves& moves) {
  return state.nodes.has_stages() && moves.parts_are_operands &&
         rounds_partials(moves.signature.dtype, moves.signature.redop) &&
         state.config.text("BRAID_NODES") == "exact";
}

Status run_wide(comm::Comm::State& state, const Moves& moves) {
  std::optional<WideMoves> wide;
  try {
    wide.emplace(moves);
  } catch (const std::bad_alloc&) {
    return end_comm(state, run_out(state, moves));
  }
  BRAID_RETURN_IF_ERROR(run_observed(state, wide->moves()));
  wide->narrow_results();
  return {};
}

}  // namespace

Status run(comm::Comm& comm, const Moves& moves) {
  comm::CallGuard guard(comm);
  BRAID_RETURN_IF_ERROR(guard.status());
  comm::Comm::State& state = guard.state();
  if (is_summed_wide(state, moves)) return run_wide(state, moves);
  return run_observed(state, moves);
}

}  // namespace braid::coll
