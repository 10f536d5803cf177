// What whoever makes the backend may say, as NIXL has it: texts by name.
#pragma once

#include <string>

#include "abi.h"
#include "base/status.h"
#include "engine/ground.h"

namespace braid::nixl {

/// All names there are, each with what holds when it is not said; an empty text is "not said".
Settings default_settings();
/// invalid_argument: a name that is not there, or a text that cannot be read.
Result<engine::EngineOptions> options_of(const std::string& agent, const Settings& given);

}  // namespace braid::nixl
