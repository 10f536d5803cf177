#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

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

}  // namespace

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

bool enabled(Level level, std::string_view folder) {
  State& s = state();
  if (level == Level::kOff || level < s.lowest.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(s.mutex);
  return level >= s.levels.of(folder);
}

void write(Level level, std::string_view folder, std::string_view text) {
  if (level == Level::kOff) return;
  const std::string rank = this_rank < 0 ? "?" : std::to_string(this_rank);
  sink().log(to_spdlog(level), "braid rank {} {} {}: {}", rank, folder,
             kLevelNames[static_cast<int>(level)], printable(text, kMaxLineChars));
}

}  // namespace braid::log
