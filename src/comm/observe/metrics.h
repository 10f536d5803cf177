// A process's counts in Prometheus's text format, version 0.0.4.
#pragma once

#include <string>
#include <vector>

#include "comm/observe/journal.h"

namespace braid::comm {

struct CommCounts {
  CommFacts facts;
  Tally tally;
};

std::string metrics_text(const std::vector<CommCounts>& comms);

}  // namespace braid::comm
