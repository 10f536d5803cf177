// A link's shares in the tuning cache (coll/tuning_cache.h): GPUs are measured once, not at every comm.
//
//   key      what the shares depend on: every rank's GPU, the options that say how calls go, and
//            the revision of the device code
//   rank 0   alone reads and writes the file; all ranks install the text that it sends, so theirs
//            are equal whatever their own caches hold
//   time     what was not enough for all of it is kept, too: who has more measures anew
//   busy     what other programs' work disturbed is not kept; comms that a process makes within a
//            minute do without
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "coll/device/tune.h"
#include "comm/device/device.h"
#include "comm/state.h"
#include "plan/plan.h"

namespace braid::coll::device {

struct LinkShares {
  std::array<comm::TunedShare, plan::kNumOps> of_op{};
  int64_t ended_ns = 0;  // measuring was ended by this time; 0: it was not
};

/// 16 hex digits.
std::string shares_key(const std::vector<std::string>& gpus, const Config& config);

std::string shares_to_json(const std::string& key, const LinkShares& shares);
/// invalid_argument, which says what was expected, for a text that is damaged or of another key.
/// An empty key: of any.
Result<LinkShares> parse_shares(std::string_view text, const std::string& key);

/// Collective, at the making of a Device: the cached shares of a link, or those that tune_shares() finds
/// by `work`. A cache that cannot be read or written is a warning. False: these GPUs are busy, and
/// measuring anything else says nothing.
Result<bool> ensure_shares(comm::Device& device, comm::DeviceLink& link, comm::Comm::State& state,
                           Deadline deadline, const TuneWork& work = {});

}  // namespace braid::coll::device
