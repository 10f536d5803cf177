// Counts of arrived immediates, and who waits for them.
//
// A count belongs to an immediate and grows by every transfer that landed under it, whoever sent
// it. What arrives before anybody expects it is kept. An expectation of n takes n of the count when
// that many are there, so the next round may begin before this one is looked at.
//
// Threads: any; one mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/ticket.h"

namespace braid::engine {

/// An expectation that a count was reached for: its ticket, and a word that was asked for.
struct Expectation {
  uint64_t count = 0;
  TicketPtr ticket;
  // Set to 1 when the count is reached, before the ticket ends; null: nowhere. Memory that a GPU
  // has mapped will do.
  std::atomic<uint64_t>* flag = nullptr;
};

class Counters {
 public:
  /// The callback of the expectation that this fulfils, to be run by the caller; else empty.
  Callback add(uint32_t immediate, uint64_t count);
  /// invalid_argument when somebody expects this immediate already. The callback is to be run by
  /// the caller when the count was there.
  Result<Callback> expect(uint32_t immediate, Expectation expectation);
  /// Ends the expectation of `immediate` with `why`; nothing happens when there is none, or it is not
  /// that of `only` (null: whoever's).
  Callback forget(uint32_t immediate, Status why, const Ticket* only = nullptr);
  /// The same, and what has arrived is not counted any more.
  Callback discard(uint32_t immediate, Status why);
  /// Ends all of them.
  std::vector<Callback> forget_all(const Status& why);
  /// What has arrived and nobody has taken.
  uint64_t count(uint32_t immediate) const;
  /// Immediates that have a count or are expected.
  size_t num_kept() const;

 private:
  struct Counter {
    uint64_t count = 0;
    Expectation expected;  // no ticket: nobody expects anything
  };
  using Counts = std::unordered_map<uint32_t, Counter>;
  Callback settle(Counts::iterator at);
  void drop_if_empty(Counts::iterator at);

  mutable std::mutex mutex_;
  Counts
      counters_;  // of those that have a count or are expected: users take new immediates for ever
};

}  // namespace braid::engine
