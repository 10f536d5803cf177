// Inbox: a window over what has arrived and is not released, per (link, source). Pieces are taken
// in order, but a taken piece may be held (its payload is an operand that waits for the others) and
// finished later, out of order; the lane gets its slots back in order, as the finished prefix
// grows.
//
// Threads: the comm's lock. One Inbox lives for one call; it must have finished all it took.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/state.h"
#include "transport/lane.h"

namespace braid::coll {

/// One taken piece, to be given to finish().
struct Taken {
  int link = 0;
  int source = 0;
  uint64_t sequence = 0;  // counts pieces of (link, source) in this call
};

class Inbox {
 public:
  /// A lane's depth must fit the window's bit mask.
  static constexpr uint32_t kMaxDepth = 64;

  Inbox(std::vector<comm::LinkState>& links, int num_ranks);

  /// The oldest piece from `source` on `link` that was not taken; false when there is none.
  bool peek(int link, int source, transport::Arrival* arrival) const;
  /// Takes the piece that peek() showed.
  Taken take(int link, int source);
  /// The taken piece's payload is no longer needed.
  void finish(const Taken& taken);
  /// Taken and not released pieces: how much of the lane's depth this rank holds back from the
  /// sender.
  uint32_t held(int link, int source) const { return window(link, source).taken; }

 private:
  struct Window {
    uint64_t released = 0;  // sequence number of the oldest unreleased piece
    uint32_t taken = 0;     // pieces taken and not released
    uint64_t done = 0;      // bit i: piece released + i is finished
  };
  Window& window(int link, int source) {
    return windows_[static_cast<size_t>(link) * num_ranks_ + source];
  }
  const Window& window(int link, int source) const {
    return windows_[static_cast<size_t>(link) * num_ranks_ + source];
  }

  std::vector<comm::LinkState>& links_;
  size_t num_ranks_;
  std::vector<Window> windows_;
};

}  // namespace braid::coll
