// Calls as torch's flight recorder writes them, so that what reads its files (torch's fr_trace,
// which compares the ranks' and names who is missing) reads ours.
//
// The readers know NCCL's names alone: an all-gather is "nccl:_all_gather_base". Times are those of
// the wall clock.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/observe/trace.h"

namespace braid::comm {

/// {"version", "pg_config", "pg_status", "entries": [...]} and "comm_lib_version"; entries of all
/// comms by the time of their call.
nlohmann::ordered_json flight_record(const std::vector<JournalPages>& comms, const Clocks& clocks,
                                     int64_t timeout_ns);

}  // namespace braid::comm
