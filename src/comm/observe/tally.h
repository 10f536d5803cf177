// Tally: what a comm's calls add up to. Counts only grow, so that whoever reads them now and then
// can tell rates.
//
// Threads: none of its own; the Journal has the lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/observe/note.h"

namespace braid::comm {

/// Upper ends of the histogram of call times, in ns: 10 us to 10 s in steps of 1, 2, 5.
inline constexpr std::array<int64_t, 19> kTimeBounds = {
    10'000,        20'000,        50'000,        100'000,       200'000,
    500'000,       1'000'000,     2'000'000,     5'000'000,     10'000'000,
    20'000'000,    50'000'000,    100'000'000,   200'000'000,   500'000'000,
    1'000'000'000, 2'000'000'000, 5'000'000'000, 10'000'000'000};

struct KindTally {
  uint64_t calls = 0;   // that were begun
  uint64_t bytes = 0;   // of these calls, as plan::Request counts
  uint64_t timed = 0;   // calls that were done and whose time is known
  int64_t time_ns = 0;  // of all these
  std::array<uint64_t, kTimeBounds.size()> within{};  // [i]: above the bound before, up to this one
};

struct LinkTally {
  uint64_t sent_bytes = 0, received_bytes = 0;
  uint32_t parts = 0;  // the share of the last call that used it
  bool is_up = true;
  uint64_t losses = 0;
};

struct Tally {
  static constexpr size_t kNumKinds = plan::kNumOps + 1;  // the operations, and barriers
  static constexpr size_t kNumCodes = static_cast<size_t>(Code::kInternal) + 1;

  std::array<std::array<KindTally, kNumKinds>, 2> kinds;  // [on GPU][kind]
  std::vector<LinkTally> links;                           // as CommFacts::links
  std::array<uint64_t, kNumCodes> failures{};             // [Code]

  static size_t kind_of(const CallShape& shape) {
    return shape.is_barrier ? plan::kNumOps : static_cast<size_t>(shape.op);
  }
  static const char* kind_name(size_t kind);

  void add_call(const CallNote& note);
  void add_time(const CallNote& note);
  void add_links(const std::vector<LinkNote>& notes);

 private:
  KindTally& kind(const CallNote& note) { return kinds[note.on_gpu ? 1 : 0][kind_of(note.shape)]; }
};

}  // namespace braid::comm
