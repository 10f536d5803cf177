#include "sys/host/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "sys/error_text.h"
#include "sys/fd.h"
#include "sys/host/api.h"

namespace braid::sys {

namespace {

constexpr size_t kNameBytes = 8;

Status file_error(const std::string& path, const char* call, int error) {
  return unavailable("{}: {}: {}", path, call, error_text(error));
}

// With O_EXCL nothing that lies there is opened: no link, no pipe, no file of somebody else's.
Status write_new(const std::string& path, std::string_view bytes) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.is_open()) return file_error(path, "create", errno);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return file_error(path, "write", written < 0 ? errno : EIO);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

Status write_file(const std::string& path, std::string_view bytes) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return unavailable("{}: folder: {}", path, error.message());
  BRAID_ASSIGN_OR_RETURN(const std::string word, random_hex(kNameBytes));
  const std::string beside = path + "." + word;
  Status written = write_new(beside, bytes);
  if (written.ok() && ::rename(beside.c_str(), path.c_str()) != 0)
    written = file_error(path, "rename", errno);
  if (!written.ok()) (void)::unlink(beside.c_str());
  return written;
}

Result<std::string> read_file(const std::string& path, uint64_t most_bytes) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.is_open()) return file_error(path, "open", errno);
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0) return file_error(path, "fstat", errno);
  if (!S_ISREG(found.st_mode)) return unavailable("{}: is no regular file", path);
  if (static_cast<uint64_t>(found.st_size) > most_bytes)
    return unavailable("{}: {} bytes, at most {} are read", path, found.st_size, most_bytes);
  std::string text(static_cast<size_t>(found.st_size), '\0');
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path, "read", errno);
    if (got == 0) break;  // it was cut meanwhile
    at += static_cast<size_t>(got);
  }
  text.resize(at);
  return text;
}

}  // namespace braid::sys
