// Steps that all ranks take or none: everyone tells how it fared, and hears of everyone.
#pragma once

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

}  // namespace braid::group
