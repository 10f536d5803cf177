// Which of this host's addresses others know it by.
#pragma once

#include <string>
#include <string_view>

namespace braid::sys {

/// This host's address on the way to `host`; where that is loopback, as a host's own name often is,
/// the address on the way to everywhere; "127.0.0.1" when there is none. Sends nothing.
std::string own_address_towards(std::string_view host);

}  // namespace braid::sys
