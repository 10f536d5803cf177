// JSON values as Python's pickle, protocol 2: what readers of torch's flight records open.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace braid::comm {

/// Objects become dicts in their order, arrays lists, whole numbers int. Whole numbers above
/// 2^63 - 1 become floats.
std::string pickled(const nlohmann::ordered_json& value);

}  // namespace braid::comm
