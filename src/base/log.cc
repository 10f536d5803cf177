#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/file_name.h"
#include "base/text.h"

namespace braid::log {

namespace {

constexpr const char* kLevelNames[] = {"trace", "debug", "info", "warn", "error", "off"};
// A line longer than this is cut: no message of ours is, so it carries somebody else's bytes.
constexpr size_t kMaxLineChars = 2000;

struct Levels {
  Level everywhere = Level::kWarn;
  std::map<std::string, Level, std::less<>> folders;

  Level of(std::string_view folder) const {
    const auto it = folders.find(folder);
    return it == folders.end() ? everywhere : it->second;
  }
  Level lowest() const {
    Level level = everywhere;
    for (const auto& [folder, own] : folders) level = std::min(level, own);
    return level;
  }
};

// `lowest` answers most calls without the lock; it is only a filter, so a stale read costs one
// look-up or one line during configure(), never more.
struct State {
  std::mutex mutex;
  Levels levels;  // guarded by mutex
  std::atomic<Level> lowest{Level::kWarn};
  std::atomic<int> job_rank{-1};
  std::atomic<bool> has_file{false};
  std::string file_pattern;                 // guarded by mutex
  std::map<std::string, std::FILE*> files;  // by name, never closed; null: cannot be opened
};

State& state() {
  static State* const kThe = new State;  // never destroyed: threads may log while the process exits
  return *kThe;
}

thread_local int this_rank = -1;

std::optional<Level> parse_level(std::string_view word) {
  for (int i = 0; i <= static_cast<int>(Level::kOff); ++i)
    if (word == kLevelNames[i]) return static_cast<Level>(i);
  return std::nullopt;
}

// One item of the spec: "warn" or "coll:trace".
bool apply(std::string_view item, Levels* levels) {
  const size_t colon = item.find(':');
  const bool names_folder = colon != std::string_view::npos;
  const auto level = parse_level(trim(names_folder ? item.substr(colon + 1) : item));
  if (!level || colon == 0) return false;
  if (names_folder)
    levels->folders.insert_or_assign(std::string(trim(item.substr(0, colon))), *level);
  else
    levels->everywhere = *level;
  return true;
}

spdlog::logger& sink() {
  static spdlog::logger* const kThe = [] {
    auto* logger = new spdlog::logger("braid", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_level(spdlog::level::trace);  // enabled() has decided already
    logger->set_pattern("%v");
    logger->flush_on(spdlog::level::trace);
    return logger;
  }();
  return *kThe;
}

spdlog::level::level_enum to_spdlog(Level level) {
  return static_cast<spdlog::level::level_enum>(level);
}
static_assert(static_cast<int>(Level::kTrace) == SPDLOG_LEVEL_TRACE);
static_assert(static_cast<int>(Level::kError) == SPDLOG_LEVEL_ERROR);

// "2026-03-01T12:00:00.123456Z"
std::string utc_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[32] = {};
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:06}Z", std::string_view(text, length), now.tv_nsec / 1000);
}

// Null when it cannot be opened, which is said once. With the lock held.
std::FILE* opened_file(State& s, const std::string& name) {
  const auto found = s.files.find(name);
  if (found != s.files.end()) return found->second;
  std::FILE* file = std::fopen(name.c_str(), "ae");
  if (file == nullptr) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's strerror keeps its text per thread
    const char* why = std::strerror(errno);
    sink().warn("braid rank ? base warn: BRAID_LOG_FILE {} cannot be opened: {}", name, why);
  }
  s.files.emplace(name, file);
  return file;
}

// False when there is no file to write to.
bool write_to_file(const std::string& line) {
  State& s = state();
  if (!s.has_file.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(s.mutex);
  if (s.file_pattern.empty()) return false;
  const int rank = launched_rank(std::max(this_rank, 0));
  std::FILE* file = opened_file(s, expand_file_name(s.file_pattern, rank));
  if (file == nullptr) return false;
  const std::string whole = fmt::format("{} {}\n", utc_now(), line);
  (void)std::fwrite(whole.data(), 1, whole.size(), file);
  (void)std::fflush(file);  // a process that dies has said all it had to say
  return true;
}

}  // namespace

void set_file(std::string_view pattern) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.file_pattern = pattern;
  s.has_file.store(!pattern.empty(), std::memory_order_relaxed);
}

bool configure(std::string_view spec) {
  Levels levels;
  for (const std::string_view item : split(spec, ','))
    if (!apply(item, &levels)) return false;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.lowest.store(levels.lowest(), std::memory_order_relaxed);
  s.levels = std::move(levels);
  return true;
}

void set_rank(int rank) { this_rank = rank; }
void set_job_rank(int rank) { state().job_rank.store(rank, std::memory_order_relaxed); }

bool enabled(Level level, std::string_view folder) {
  State& s = state();
  if (level == Level::kOff || level < s.lowest.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(s.mutex);
  return level >= s.levels.of(folder);
}

void write(Level level, std::string_view folder, std::string_view text) {
  if (level == Level::kOff) return;
  const int job_rank = state().job_rank.load(std::memory_order_relaxed);
  const int known = job_rank >= 0 ? job_rank : this_rank;
  const std::string rank = known < 0 ? "?" : std::to_string(known);
  const std::string line =
      fmt::format("braid rank {} {} {}: {}", rank, folder, kLevelNames[static_cast<int>(level)],
                  printable(text, kMaxLineChars));
  if (!write_to_file(line)) sink().log(to_spdlog(level), "{}", line);
}

}  // namespace braid::log
