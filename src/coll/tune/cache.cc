#include "coll/tune/cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "sys/host/api.h"

namespace braid::coll {

namespace fs = std::filesystem;

std::string tuning_path(const Config& config, const std::string& fabric_hash) {
  fs::path folder = config.text("BRAID_CACHE_DIR");
  // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (folder.empty() && xdg != nullptr && *xdg != '\0') folder = fs::path(xdg) / "braid";
  if (folder.empty()) folder = fs::path(sys::home_directory()) / ".cache" / "braid";
  return (folder / ("tuning-" + fabric_hash + ".json")).string();
}

Result<std::string> read_tuning(const std::string& path) {
  constexpr uintmax_t kMostBytes = 1 << 20;
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return unavailable("tuning cache {}: {}", path, error.message());
  if (bytes > kMostBytes)
    return unavailable("tuning cache {}: {} bytes, at most {} are read", path, bytes, kMostBytes);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return unavailable("tuning cache {}: cannot be read", path);
  return text.str();
}

Status write_tuning(const std::string& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return unavailable("tuning cache {}: folder: {}", path, error.message());
  const std::string beside = fmt::format("{}.{}", path, sys::process_id());
  {
    std::ofstream file(beside, std::ios::binary | std::ios::trunc);
    file << text;
    if (!file.flush()) return unavailable("tuning cache {}: cannot be written", beside);
  }
  fs::rename(beside, path, error);
  if (error) return unavailable("tuning cache {}: {}", path, error.message());
  return {};
}

}  // namespace braid::coll
