// Facts as JSON: to save a machine and look at it elsewhere, and to tell the other ranks what is
// here. One version; parse_*() trusts nothing and returns invalid_argument with the place that is
// wrong.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "fabric/types.h"

namespace braid::fabric {

std::string to_json(const Fabric& fabric);
Result<Fabric> parse_fabric(std::string_view text);

std::string to_json(const Node& node);
Result<Node> parse_node(std::string_view text);

}  // namespace braid::fabric
