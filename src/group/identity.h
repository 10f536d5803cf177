// Reading who we are from a launcher's variables; the environment is a parameter, so that tests and
// the fuzzer can bring their own.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/config.h"
#include "group/group.h"

namespace braid::group {

/// The value of a variable, or nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

Result<Identity> identity_from(const Environment& environment, const Config& config);

}  // namespace braid::group
