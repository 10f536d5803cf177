// Whole files, written so that nobody reads half of one.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::sys {

/// Makes the folder, writes beside `path` and renames: readers see the old file or the new one.
/// unavailable names the file and what went wrong.
Status write_file(const std::string& path, std::string_view bytes);

}  // namespace braid::sys
