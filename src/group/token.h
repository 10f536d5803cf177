// Which secret the ranks of a job share when nobody set one.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace braid::group {

/// The user's own secret, made on first use: 32 random bytes as hex in <directory>/braid/token,
/// mode 0600. Processes that race to make it agree on one. unavailable when the file cannot be made
/// or others could have read it.
Result<std::string> user_secret(const std::string& directory);

/// `given` when it is not empty. Else, on loopback only, a secret that every process of this user
/// on this host finds: user_secret() in $XDG_RUNTIME_DIR or ~/.cache, bound to the store's port.
/// Off loopback: unavailable, and what to set.
Result<std::string> choose_token(const std::string& given, bool is_loopback,
                                 const std::string& store_address, uint16_t store_port);

}  // namespace braid::group
