// Which secret the ranks of a job share when nobody set one.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace braid::group {

/// The user's own secret, made on first use: 32 random bytes as hex in <directory>/braid/token,
/// mode 0600, in a folder that is the user's and that nobody else writes to. Processes that race to
/// make it agree on one. Never waits, whatever lies there. unavailable when the file cannot be made
/// or others could have read or put it there.
Result<std::string> user_secret(const std::string& directory);

/// `given` when it is not empty. Else, for ranks on one host only, a secret that every process of
/// this user on this host finds: user_secret() in $XDG_RUNTIME_DIR, if that is the user's, or
/// ~/.cache, bound to the store's port. For several hosts: unavailable, and the line to write for
/// the launcher at hand.
Result<std::string> choose_token(const std::string& given, bool is_one_host,
                                 const std::string& store_address, uint16_t store_port);

}  // namespace braid::group
