// A timeline of calls as the JSON that Perfetto and chrome://tracing read.
//
// A process is a rank of the job. Of every comm it has a track of its calls, as the caller's thread
// saw them, one per host link that was used, from the call's start to the link's last byte, and one
// of the work on its GPU. An arrow goes from a GPU call to its work.
#pragma once

#include <string>
#include <vector>

#include "comm/observe/journal.h"

namespace braid::comm {

struct JournalPages {
  CommFacts facts;
  std::vector<CallNote> notes;
  uint64_t num_calls = 0;  // of which these are the last
};
JournalPages pages_of(const Journal& journal);

/// Two clocks of this host at one moment: what lets timelines of several hosts be laid together.
struct Clocks {
  int64_t monotonic_ns = 0, realtime_ns = 0;
};
Clocks clocks_now();

/// The whole file; valid JSON whatever names say. `host` is sys::host_id().
std::string trace_json(const std::vector<JournalPages>& comms, const std::string& host,
                       const Clocks& clocks);

}  // namespace braid::comm
