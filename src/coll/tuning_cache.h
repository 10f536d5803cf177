// The tuning cache: one JSON file per fabric, so that a machine is measured once.
//
// Rank 0 alone reads and writes it; the text goes to the other ranks, which parse the same bytes. A
// file that cannot be read, or says something else than this fabric, is a warning and a new
// measurement, never an error.
#pragma once

#include <functional>
#include <string>

#include "base/config.h"
#include "base/status.h"

namespace braid::coll {

/// Where the tuning of this fabric lies: BRAID_CACHE_DIR, else $XDG_CACHE_HOME/braid, else
/// ~/.cache/braid. Empty where there is none of these: nothing is read then, and nothing kept, for
/// what lies in the working directory may be anybody's.
std::string tuning_path(const Config& config, const std::string& fabric_hash);
/// The file's text; unavailable when there is none or it cannot be read (at most 1 MiB is).
Result<std::string> read_tuning(const std::string& path);
/// What rank 0's file has for all ranks; empty on the others, with BRAID_TUNE=force, and where
/// there is no text of which `check` says that it holds: why not is a warning.
std::string find_tuning(const Config& config, int rank, const std::string& path,
                        const std::function<Status(const std::string& text)>& check);
/// Writes beside and renames, so that a reader never sees half a file; makes the folder.
Status write_tuning(const std::string& path, const std::string& text);
/// The same; a failure is a warning that `what` will be measured again, and no path a line at info.
void keep_tuning(const std::string& path, const std::string& text, const char* what);
/// The same of a measurement that was cut off: with BRAID_TUNE=force there may be a file of one that was
/// not. It stays where `has_more` says so of its text.
void keep_cut_off_tuning(const std::string& path, const std::string& text, const char* what,
                         const std::function<bool(const std::string& text)>& has_more);

}  // namespace braid::coll
