#include "comm/observe/tally.h"

#include <algorithm>

namespace braid::comm {

const char* Tally::kind_name(size_t kind) {
  return kind < plan::kNumOps ? plan::op_name(static_cast<plan::Op>(kind)) : "barrier";
}

void Tally::add_call(const CallNote& note) {
  KindTally& of = kind(note);
  ++of.calls;
  of.bytes += note.shape.bytes;
}

void Tally::add_time(const CallNote& note) {
  const int64_t time_ns = note.duration_ns();
  KindTally& of = kind(note);
  ++of.timed;
  of.time_ns += time_ns;
  const auto bound = std::lower_bound(kTimeBounds.begin(), kTimeBounds.end(), time_ns);
  if (bound != kTimeBounds.end()) ++of.within[static_cast<size_t>(bound - kTimeBounds.begin())];
}

void Tally::add_links(const std::vector<LinkNote>& notes) {
  for (const LinkNote& note : notes) {
    LinkTally& of = links[static_cast<size_t>(note.link)];
    of.sent_bytes += note.sent_bytes;
    of.received_bytes += note.received_bytes;
    of.parts = note.parts;
  }
}

}  // namespace braid::comm
