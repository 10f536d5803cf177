// Stage 1: measure at start which shares make all links finish together, per operation and size
// class.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Called on rank 0 while tuning: how far it is (0 to 1) and what it does now.
using TuneProgress = std::function<void(double done, const std::string& what)>;

/// Loads this fabric's tuning from the cache on disk, or measures it (at most BRAID_TUNE_TIME,
/// default 8 s) and saves it. What is of other links, or was cut off by a smaller budget than this one,
/// is measured anew. BRAID_TUNE=off keeps the cost model's shares; =force measures anew.
/// Collective; all ranks end with the same table.
Status ensure_tuned(comm::Comm& comm, const TuneProgress& progress);

}  // namespace braid::coll
