// decide(): the one entry from facts and measurements to a Plan.
#pragma once

#include <span>

#include "plan/plan.h"
#include "plan/table.h"

namespace braid::plan {

struct DecideOptions {
  uint32_t max_piece_bytes = 64 << 10;  // the smallest max_piece_bytes of the lanes
  double min_gain = 0.02;               // less than this over the best link: the best link alone
};

/// The plan for `request` over `links` (at least one, in the fabric's order), by the best knowledge
/// there is:
/// 1. the tuned entry of its size class; 2. solved from the table's rate points; 3. solved from the
/// links' facts. A table of other links than these counts as empty. Pure.
Plan decide(const Request& request, std::span<const fabric::Link> links, const TuningTable& table,
            const DecideOptions& options = {});

}  // namespace braid::plan
