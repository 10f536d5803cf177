// Logging: five levels by volume, one prefix (`braid rank R folder`; R is the process's rank in its
// job, whatever rank it is in parts of it), one sink (stderr, through spdlog, which only log.cc
// sees). Lower case, `key value` without `=`, never on the data path.
// BRAID_LOG=warn sets all folders, BRAID_LOG=warn,coll:trace one of them apart. BRAID_LOG_FILE puts
// lines into files instead, with the time in front.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace braid::log {

enum class Level { kTrace, kDebug, kInfo, kWarn, kError, kOff };

/// Sets levels from "warn" or "warn,coll:trace,plan:debug"; false when a word is unknown (levels
/// stay).
bool configure(std::string_view spec);
/// Lines go to the end of the file of this name from now on (base/file_name.h: %r is the rank that
/// the launcher gave the process, else that of the line); empty: to standard error. A file that
/// cannot be opened is told there, once, and so are its lines.
void set_file(std::string_view pattern);
/// The rank that lines of this thread carry; -1 before it is known. Ranks may be threads, so this is
/// per thread.
void set_rank(int rank);
/// The process's rank in its job, which all lines carry from now on, whatever ranks its threads have
/// in parts of the job; -1: those again.
void set_job_rank(int rank);
bool enabled(Level level, std::string_view folder);
/// Writes one line. Any thread.
void write(Level level, std::string_view folder, std::string_view text);

template <typename... Args>
void line(Level level, std::string_view folder, fmt::format_string<Args...> f, Args&&... args) {
  if (enabled(level, folder)) write(level, folder, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void error(std::string_view folder, fmt::format_string<Args...> f, Args&&... args) {
  line(Level::kError, folder, f, std::forward<Args>(args)...);
}
template <typename... Args>
void warn(std::string_view folder, fmt::format_string<Args...> f, Args&&... args) {
  line(Level::kWarn, folder, f, std::forward<Args>(args)...);
}
template <typename... Args>
void info(std::string_view folder, fmt::format_string<Args...> f, Args&&... args) {
  line(Level::kInfo, folder, f, std::forward<Args>(args)...);
}
template <typename... Args>
void debug(std::string_view folder, fmt::format_string<Args...> f, Args&&... args) {
  line(Level::kDebug, folder, f, std::forward<Args>(args)...);
}

}  // namespace braid::log
