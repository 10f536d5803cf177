// Steps that all ranks take or none: everyone tells how it fared, and hears of everyone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"

namespace braid::group {

/// Collective: the ranks' payloads, or the Status of the first rank that was not ok, naming it: the
/// same on all ranks.
Result<std::vector<std::string>> agree(Group& group, const std::string& topic, const Status& mine,
                                       std::string_view payload, Deadline deadline);

/// Collective: numbers of all ranks, each as many as `own`; internal where a rank's are others.
Result<std::vector<std::vector<int64_t>>> exchange_numbers(Group& group, const std::string& topic,
                                                           std::span<const int64_t> own,
                                                           Deadline deadline);

}  // namespace braid::group
