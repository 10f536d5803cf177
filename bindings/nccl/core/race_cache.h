// What a race has shown, kept on disk: one file per operation of what was raced. Rank 0 alone reads
// and writes it (coll/tuning_cache.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "bindings/nccl/core/race.h"

namespace braid::nccl {

/// Everything that decides who is faster.
struct Raced {
  braid_nccl_op op;
  SizeRange sizes;
  int nccl_version;
  uint64_t nccl_config;
  std::vector<std::string> ranks;  // what each says of itself: own_facts()
  std::string nodes = "";          // "2 x 2"; empty: one node
  bool in_windows = false;
};

/// This rank's GPU, its driver, and what the environment of races is: variables and files.
std::string own_facts(const std::string& gpu, int driver_version);
/// Variables that may change how fast NCCL or braid is, sorted, and what NCCL's files set.
std::string race_environment();

/// Equal only where all of it is, and braid's own settings and code.
std::string race_key(const Raced& raced, const Config& config);

struct KeptRace {
  braid_nccl_choice choice{};
  int64_t time_ns = 0;  // that ended before all sizes were measured; 0: all were
};
std::string race_to_json(const std::string& key, const KeptRace& kept);
/// invalid_argument when it is not of `key` (empty: any), or damaged.
Result<KeptRace> parse_race(std::string_view text, const std::string& key);

}  // namespace braid::nccl
