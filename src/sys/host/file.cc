#include "sys/host/file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "sys/host/api.h"

namespace braid::sys {

namespace fs = std::filesystem;

Status write_file(const std::string& path, std::string_view bytes) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) return unavailable("{}: folder: {}", path, error.message());
  const std::string beside = fmt::format("{}.{}", path, process_id());
  {
    std::ofstream file(beside, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) return unavailable("{}: cannot be written", beside);
  }
  fs::rename(beside, path, error);
  if (error) return unavailable("{}: {}", path, error.message());
  return {};
}

}  // namespace braid::sys
