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
#include "sys/cuda/types.h"

namespace braid::engine {

/// 8 bytes that become 1 when a count is reached, before its ticket ends. One of both, or none.
struct Flag {
  std::atomic<uint64_t>* on_host = nullptr;  // a GPU may have mapped it
  sys::DevicePtr on_gpu = 0;
};

/// That a count is reached: so many, the ticket that ends then, and a flag that was asked for.
struct Expectation {
  uint64_t count = 0;
  TicketPtr ticket;
  Flag flag;
};

/// What a thread must do, without a lock, once it has made a count be reached.
struct Reached {
  Callback callback;          // of a ticket that has ended: to be run
  TicketPtr ticket;           // of another one, which ends when its flag is written; null: none
  sys::DevicePtr on_gpu = 0;  // that flag
};

class Counters {
 public:
  /// What is to be done for the expectation that this fulfils; nothing if it fulfils none.
  Reached add(uint32_t immediate, uint64_t count);
  /// invalid_argument when somebody expects this immediate already. As above when the count was there.
  Result<Reached> expect(uint32_t immediate, Expectation expectation);
  /// Ends the expectation of `immediate` with `why`; nothing happens when there is none, or it is not
  /// that of `only` (null: whoever's).
  Callback forget(uint32_t immediate, Status why, const Ticket* only = nullptr);
  /// The same, and what has arrived is not counted any more.
  Callback discard(uint32_t immediate, Status why);
  /// Ends all expectations, and with the same words each that comes later: a callback may expect
  /// anew what was cancelled, and that would never end.
  std::vector<Callback> forget_all(const Status& why);
  /// How many have arrived and were not taken.
  uint64_t count(uint32_t immediate) const;
  /// Immediates that have a count or are expected.
  size_t num_kept() const;

 private:
  struct Counter {
    uint64_t count = 0;
    Expectation expected;  // no ticket: nobody expects anything
  };
  using Counts = std::unordered_map<uint32_t, Counter>;
  Reached settle(Counts::iterator at);
  void drop_if_empty(Counts::iterator at);

  mutable std::mutex mutex_;
  Counts
      counters_;  // of those that have a count or are expected: users take new immediates for ever
  Status ended_;  // ok: nobody has forgotten all
};

}  // namespace braid::engine
