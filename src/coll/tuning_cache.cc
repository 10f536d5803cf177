#include "coll/tuning_cache.h"

#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "sys/host/api.h"
#include "sys/host/file.h"

namespace braid::coll {

namespace fs = std::filesystem;

std::string tuning_path(const Config& config, const std::string& fabric_hash) {
  fs::path folder = config.text("BRAID_CACHE_DIR");
  // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
  const char* xdg = secure_getenv("XDG_CACHE_HOME");
  if (folder.empty() && xdg != nullptr && *xdg != '\0') folder = fs::path(xdg) / "braid";
  if (folder.empty()) {
    const std::string home = sys::home_directory();
    if (home.empty()) return {};
    folder = fs::path(home) / ".cache" / "braid";
  }
  return (folder / ("tuning-" + fabric_hash + ".json")).string();
}

Result<std::string> read_tuning(const std::string& path) {
  constexpr uint64_t kMostBytes = 1 << 20;
  Result<std::string> text = sys::read_file(path, kMostBytes);
  if (!text.ok()) return text.status().with_context("tuning cache");
  return text;
}

std::string find_tuning(const Config& config, int rank, const std::string& path,
                        const std::function<Status(const std::string& text)>& check) {
  if (rank != 0 || path.empty() || config.text("BRAID_TUNE") == "force") return {};
  Result<std::string> text = read_tuning(path);
  if (!text.ok()) return {};
  const Status holds = check(text.value());
  if (holds.ok()) return std::move(text).value();
  log::warn("coll", "tuning cache {} is ignored and made anew: {}", path, holds.to_string());
  return {};
}

Status write_tuning(const std::string& path, const std::string& text) {
  return sys::write_file(path, text).with_context("tuning cache");
}

void keep_tuning(const std::string& path, const std::string& text, const char* what) {
  if (path.empty()) {
    log::info("coll", "{} will be measured again next time: no home directory, no BRAID_CACHE_DIR",
              what);
    return;
  }
  const Status kept = write_tuning(path, text);
  if (!kept.ok())
    log::warn("coll", "{}; {} will be measured again next time", kept.message(), what);
}

void keep_cut_off_tuning(const std::string& path, const std::string& text, const char* what,
                         const std::function<bool(const std::string& text)>& has_more) {
  const Result<std::string> kept = read_tuning(path);
  if (!kept.ok() || !has_more(kept.value())) return keep_tuning(path, text, what);
  log::info("coll", "measuring was cut off: tuning cache {} has more of {}, and stays", path, what);
}

}  // namespace braid::coll
