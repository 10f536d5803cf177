// Once every rank has entered: whether all mean the same call, and what stays on this rank.
#include <cstring>

#include "base/clock.h"
#include "base/units.h"
#include "coll/host/call.h"
#include "coll/reduce/reduce.h"

namespace braid::coll {

// Called once every entry is there.
// NOLINTBEGIN(bugprone-unchecked-optional-access)
void Call::all_entries_in() {
  stall_watch_.all_entered(now_ns());
  for (const auto& entry : entries_) {
    for (const comm::ShareUpdate& update : entry->updates) state_.book.learn(update);
    cut_alike_ = cut_alike_ && entry->up_mask == entries_[0]->up_mask;
  }
  mismatch_ = check_agreement();
  if (!mismatch_.ok()) {
    discarding_ = true;  // our entry must still reach everyone; nothing of this call touches memory
    outbox_.drop_ranges();
    return;
  }
  agreed_ = true;
  begin_local();
}

Status Call::check_agreement() const {
  const int me = state_.rank();
  const Signature& mine = moves_.signature;
  for (int r = 0; r < state_.size(); ++r) {
    const Entry& entry = *entries_[static_cast<size_t>(r)];
    if (entry.signature != mine)
      return invalid_argument("call {}: rank {} called {}, rank {} called {}", epoch_, me,
                              to_words(mine), r, to_words(entry.signature));
  }
  if (mine.form != Form::kUneven) return {};
  return mine.op == plan::Op::kAllToAll ? check_pairs() : check_blocks();
}

// all_to_all_v: what one rank sends another is what that one expects.
Status Call::check_pairs() const {
  for (int from = 0; from < state_.size(); ++from) {
    const auto& sends = entries_[static_cast<size_t>(from)]->send_counts;
    for (int to = 0; to < state_.size(); ++to) {
      const auto& receives = entries_[static_cast<size_t>(to)]->recv_counts;
      if (sends.size() != entries_.size() || receives.size() != entries_.size())
        return internal_error("call {}: rank {} sent {} counts, rank {} {}", epoch_, from,
                              sends.size(), to, receives.size());
      if (sends[static_cast<size_t>(to)] != receives[static_cast<size_t>(from)])
        return invalid_argument(
            "call {}: all_to_all_v: rank {} sends {} elements to rank {}, which expects {}", epoch_,
            from, sends[static_cast<size_t>(to)], to, receives[static_cast<size_t>(from)]);
    }
  }
  return {};
}

// The other uneven forms: all ranks say the same of every block. Compared with rank 0's, so that
// all ranks say the same of a disagreement, too.
Status Call::check_blocks() const {
  const auto& first = entries_[0]->send_counts;
  for (size_t r = 0; r < entries_.size(); ++r) {
    const auto& counts = entries_[r]->send_counts;
    if (counts.size() != entries_.size())
      return internal_error("call {}: rank {} sent {} counts for {} ranks", epoch_, r,
                            counts.size(), entries_.size());
    for (size_t block = 0; block < counts.size(); ++block)
      if (counts[block] != first[block])
        return invalid_argument(
            "call {}: {}: rank 0 says that block {} has {} elements, rank {} says {}", epoch_,
            call_name(moves_.signature), block, first[block], r, counts[block]);
  }
  return {};
}
// NOLINTEND(bugprone-unchecked-optional-access)

// What stays on this rank: its own block, and, alone, the reduction of one operand.
void Call::begin_local() {
  const auto me = static_cast<size_t>(state_.rank());
  if (reducer_ && state_.size() == 1) {
    const void* own = moves_.parts[me].data;
    reduce({&own, 1}, moves_.reduced.data, moves_.reduced.bytes / dtype_bytes(moves_.element()),
           moves_.element(), moves_.signature.redop);
  }
  if (moves_.places.size() <= me || reducer_ || sums_) return;
  const Block& place = moves_.places[me];
  const ConstBlock own = moves_.parts.empty() ? moves_.mine : moves_.parts[me];
  if (place.bytes > 0 && own.data != nullptr && own.data != place.data)
    local_ = {own.data, place.data, place.bytes};
}

// A little at a time, while links have nothing for us: all at once 32 MiB held every link up for 4
// ms. The two blocks lie apart, or are one.
bool Call::copy_local() {
  constexpr uint64_t kBytes = 128_KiB;
  if (local_.bytes == 0) return false;
  const uint64_t bytes = std::min(kBytes, local_.bytes);
  std::memcpy(local_.to, local_.from, bytes);
  local_ = {local_.from + bytes, local_.to + bytes, local_.bytes - bytes};
  return true;
}

}  // namespace braid::coll
