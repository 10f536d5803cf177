// EpochLog: what is decided as of which call, the same on all ranks, without anybody waiting for
// anybody.
//
// Hosts only enqueue: one rank may be hundreds of calls ahead of another, and whoever decides
// cannot know who has passed which call. So every counted call has a word in memory that all ranks
// share, and a word is written once:
//
//   whoever comes to call c first   writes "nothing changes at c", if nobody has written it yet
//   rank 0, with a change          writes it into the first word that nobody has written yet
//   everybody at call c             does as the word says
//
// Both are one compare-and-swap on one word, so all ranks read the same at c, whatever the order.
//
// Words are a ring. A word holds the number of its call beside the change; it may be written for
// call c + kWords when all ranks have passed c, which each says in a word of its own segment. A
// rank that would overtake by so much waits for that, until its deadline: it has some thousand
// calls enqueued that the other rank has not, and none of them can run.
//
// Memory order: a change is the word itself. `passed` is released after the word was read and
// acquired before it is written anew.
//
// Threads: one at a time in every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace braid::comm {

class EpochLog {
 public:
  static constexpr uint64_t kWords = 4096;
  /// What lies in every rank's segment, all zero at first. Only rank 0's words are used.
  struct Pages {
    alignas(128) uint64_t passed;  // the last call that this rank has read the word of
    alignas(128) uint64_t words[kWords];
  };

  /// `pages`: one per rank, as this process addresses them.
  EpochLog(int rank, std::vector<Pages*> pages);

  /// The change that holds from `call` on, 0 for none. Calls are settled in order, from 1.
  /// `fate` says whether waiting is still of use.
  Result<uint32_t> settle(uint64_t call, Deadline deadline, const std::function<Status()>& fate);
  /// Writes `change` (not 0) for the first call from `from_call` on that nobody has settled; that
  /// call, or 0 when there is no room just now.
  uint64_t propose(uint32_t change, uint64_t from_call);

 private:
  uint64_t& word_of(uint64_t call) const { return pages_[0]->words[call % kWords]; }
  bool is_free(uint64_t call);
  /// The word of `call`, with `change` written into it if nobody had written any.
  uint64_t write_once(uint64_t call, uint32_t change) const;

  const int rank_;
  const std::vector<Pages*> pages_;
  uint64_t all_passed_ = 0;  // as far as was last looked
};

}  // namespace braid::comm
