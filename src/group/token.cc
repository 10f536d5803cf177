#include "group/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "sys/error_text.h"
#include "sys/fd.h"
#include "sys/host/api.h"

namespace braid::group {

namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kSecretChars = 2 * kSecretBytes;

Status file_error(const std::string& path, const char* call, int error) {
  return unavailable("token file {}: {}: {}; set BRAID_JOB_TOKEN", path, call,
                     sys::error_text(error));
}

Result<std::string> read_secret(const std::string& path) {
  const sys::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.is_open()) return file_error(path, "open", errno);
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0) return file_error(path, "fstat", errno);
  if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 077) != 0)
    return unavailable(
        "token file {}: must be a file of user {} with mode 0600, found user {} mode {:04o}; "
        "remove it",
        path, ::geteuid(), found.st_uid, found.st_mode & 07777);
  std::string text(kSecretChars, '\0');
  if (::read(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return unavailable("token file {}: found {} bytes, expected {}; remove it", path, found.st_size,
                       kSecretChars);
  return text;
}

// A whole file appears under its name in one step, by link(): a reader never finds half a secret,
// and of several writers the first wins and the others read what it wrote.
Status publish_secret(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const std::string secret, sys::random_hex(kSecretBytes));
  BRAID_ASSIGN_OR_RETURN(const std::string suffix, sys::random_hex(8));
  const std::string draft = path + "." + suffix;
  const sys::Fd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.is_open()) return file_error(draft, "create", errno);
  const bool is_written =
      ::write(fd.get(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  const int write_error = errno;
  const bool is_linked =
      is_written && (::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int error = is_written ? errno : write_error;
  (void)::unlink(draft.c_str());
  return is_linked ? Status() : file_error(path, "create", error);
}

}  // namespace

Result<std::string> user_secret(const std::string& directory) {
  const std::string folder = directory + "/braid";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return file_error(folder, "create", error.value());
  const std::string path = folder + "/token";
  if (::access(path.c_str(), F_OK) != 0) BRAID_RETURN_IF_ERROR(publish_secret(path));
  return read_secret(path);
}

Result<std::string> choose_token(const std::string& given, bool is_loopback,
                                 const std::string& store_address, uint16_t store_port) {
  if (!given.empty()) return given;
  if (!is_loopback)
    return unavailable(
        "group: the store at {} is not on loopback, so ranks must share a secret: "
        "set BRAID_JOB_TOKEN to the same random text on all ranks",
        store_address);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): braid never changes the environment
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool has_runtime = runtime != nullptr && ::access(runtime, W_OK) == 0;
  const std::string home = sys::home_directory();
  if (!has_runtime && home.empty())
    return unavailable("group: no home directory for a token file: set BRAID_JOB_TOKEN");
  BRAID_ASSIGN_OR_RETURN(const std::string secret,
                         user_secret(has_runtime ? runtime : home + "/.cache"));
  return fmt::format("{}:{}", secret, store_port);
}

}  // namespace braid::group
