// Whole files, written so that nobody reads half of one, in folders that others may write to as
// well: what they have planted under a name of ours is neither followed nor waited for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::sys {

/// Makes the folder, writes beside `path` under a name that nobody can guess, and renames: readers
/// see the old file or the new one. A link or pipe at `path` is replaced, never followed. On failure
/// nothing is left. unavailable names the file and what went wrong.
Status write_file(const std::string& path, std::string_view bytes);

/// A regular file of at most `most_bytes`; never waits, whatever lies there. unavailable names the
/// file and what was found.
Result<std::string> read_file(const std::string& path, uint64_t most_bytes);

}  // namespace braid::sys
