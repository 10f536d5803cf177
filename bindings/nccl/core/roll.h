// A roll: where the ranks of one NCCL communicator learn whether all of them are on this host under
// braid, and where they decide together to take it over or to leave it to NCCL.
//
// A page of shared memory, of the user alone, under a name that follows from the communicator's
// key. All zero is its beginning, so nobody has to make it ready for others. In it:
//
//   seats      who signed, before NCCL's init; complete when init has succeeded somewhere
//   arrivals   ranks at their first call; the last one to come or the first to give up decides
//   port       rank 0's store, written when all have arrived, behind its token
//   votes      one per rank once it has set itself up, or failed to
//   meetings   of what comes later, one each
//
// arrivals, votes and meetings count ranks, and one bit says that it has come to nothing. The count can no
// longer become full when the bit is set, nor the bit be set when the count is full, by
// compare-and-swap: so the outcome is one for all ranks, whenever each of them looks.
//
// A rank that ends without a word is noticed: each holds a lock on the page's file for as long as
// its process lives (liveness_lock.h). Who waits looks at the others' locks, and gives up when one is
// gone.
//
// Waits also end when `is_aborted` says so, which is asked every few milliseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "bindings/nccl/core.h"
#include "bindings/nccl/core/liveness_lock.h"
#include "sys/shm/api.h"

namespace braid::nccl {

/// What a rank says about itself when it signs.
struct Signature {
  uint64_t process = 0;   // no two processes of the host have the same
  uint64_t settings = 0;  // a fingerprint of everything that ranks must have alike
};

/// Where rank 0's store is.
struct Rendezvous {
  uint16_t port = 0;
  std::string token;  // 64 hex digits
};

class Roll {
 public:
  /// unavailable when others could read or write the page, exhausted, driver.
  /// The page is this host's: network namespaces may share /dev/shm, and are hosts of their own.
  /// `host_id` is BRAID_HOST_ID; empty: the machine's own.
  static Result<Roll> open(const std::string& key, const std::string& host_id = {});
  Roll(Roll&&) noexcept = default;
  Roll& operator=(Roll&&) = delete;
  ~Roll() = default;

  /// Not ok: this rank is missing from the roll, for all.
  Status sign(const Signature& signature);
  /// Takes the name away: everyone who ever signs has the page open. A page that another one made
  /// under the same name keeps it.
  void seal();
  /// ok when all of `num_ranks` signed and fit together; unsupported, and why, is the same on all.
  /// `may_share`: several of them may be of one process.
  Status check(int num_ranks, bool may_share) const;

  /// Whether the process of a rank that signed has ended. Once all have voted nobody may ask.
  bool has_lost_one() const;
  /// This rank needs the others no longer, nor they it.
  void end_liveness_lock() { liveness_.end(); }
  /// For a rank that will never arrive(): the others need not wait for it.
  void decline();
  /// ok when all have arrived; else unavailable, for everyone.
  Status arrive(int num_ranks, Deadline deadline, const std::function<bool()>& is_aborted);
  void publish(const Rendezvous& rendezvous);
  Result<Rendezvous> find_rendezvous(Deadline deadline, const std::function<bool()>& is_aborted);
  /// ok when all have voted yes; unavailable for everyone when one has voted no.
  Status vote(bool yes, int num_ranks, Deadline deadline, const std::function<bool()>& is_aborted);

  /// Of a communicator that is set up: whether all ranks come to what `slot` numbers, below
  /// kNumMeetings, by the deadline. Once for each; the same answer on all of them.
  bool meet(size_t slot, int num_ranks, Deadline deadline, const std::function<bool()>& is_aborted);
  static constexpr size_t kNumMeetings = 24;

  /// For the name of a job; nobody learns the key from it.
  const std::string& name() const { return name_; }

 private:
  struct Page;
  Roll(std::string name, sys::Segment segment, LivenessLock liveness);
  Page& page() const;
  bool all_in(std::atomic<uint32_t>& word, uint32_t all, Deadline deadline,
              const std::function<bool()>& is_aborted) const;

  std::string name_;
  sys::Segment segment_;
  LivenessLock liveness_;
  uint64_t process_ = 0;  // who signed here
};

}  // namespace braid::nccl
