// The links that a comm of GPUs has: the one list of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/links/link.h"

namespace braid::comm {

/// Makes the links of one Device: the base link, then those beside it in the order in which they take
/// the ends of messages. On all ranks alike.
using LinkMaker = std::function<std::vector<std::unique_ptr<DeviceLink>>(const LinkGround&)>;

/// All of them, as names.h has them.
std::vector<std::unique_ptr<DeviceLink>> make_links(const LinkGround& ground);

}  // namespace braid::comm
