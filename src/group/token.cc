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

constexpr const char* kFileName = "token";
constexpr size_t kSecretBytes = 32;
constexpr size_t kSecretChars = 2 * kSecretBytes;

Status file_error(const std::string& path, const char* call, int error) {
  return unavailable("token file {}: {}: {}; set BRAID_JOB_TOKEN", path, call,
                     sys::error_text(error));
}

bool is_ours_alone(const struct stat& found, mode_t denied) {
  return found.st_uid == ::geteuid() && (found.st_mode & denied) == 0;
}

// In a folder that others own or write to, they decide what our names mean.
Result<sys::Fd> open_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return file_error(path, "create", errno);
  sys::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.is_open()) return file_error(path, "open", errno);
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0) return file_error(path, "fstat", errno);
  if (!is_ours_alone(found, 022))
    return unavailable(
        "token folder {}: must belong to user {} and be writable for nobody else, found user {} "
        "mode {:04o}; mend it or set BRAID_JOB_TOKEN",
        path, ::geteuid(), found.st_uid, found.st_mode & 07777);
  return fd;
}

// O_NONBLOCK: a pipe that lies there must not be waited for.
Result<std::string> read_secret(const sys::Fd& folder, const std::string& path) {
  const sys::Fd fd(
      ::openat(folder.get(), kFileName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.is_open()) return file_error(path, "open", errno);
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0) return file_error(path, "fstat", errno);
  if (!S_ISREG(found.st_mode) || !is_ours_alone(found, 077))
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

// A whole file appears under its name in one step, by linkat(): a reader never finds half a secret,
// and of several writers the first wins and the others read what it wrote.
Status publish_secret(const sys::Fd& folder, const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const std::string secret, sys::random_hex(kSecretBytes));
  BRAID_ASSIGN_OR_RETURN(const std::string suffix, sys::random_hex(8));
  const std::string draft = std::string(kFileName) + "." + suffix;
  const sys::Fd fd(
      ::openat(folder.get(), draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.is_open()) return file_error(path, "create", errno);
  const bool is_written =
      ::write(fd.get(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  const int write_error = errno;
  const bool is_linked =
      is_written &&
      (::linkat(folder.get(), draft.c_str(), folder.get(), kFileName, 0) == 0 || errno == EEXIST);
  const int error = is_written ? errno : write_error;
  (void)::unlinkat(folder.get(), draft.c_str(), 0);
  return is_linked ? Status() : file_error(path, "create", error);
}

// $XDG_RUNTIME_DIR when it is what it promises to be, a folder of this user's; else ~/.cache. Empty:
// neither is there.
std::string secret_directory() {
  const char* runtime = ::secure_getenv("XDG_RUNTIME_DIR");
  struct stat found{};
  if (runtime != nullptr && *runtime == '/' && ::stat(runtime, &found) == 0 &&
      S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && ::access(runtime, W_OK) == 0)
    return runtime;
  const std::string home = sys::home_directory();
  return home.empty() ? home : home + "/.cache";
}

// What to write where, for who starts the ranks.
std::string how_to_share() {
  const auto is_set = [](const char* name) { return ::secure_getenv(name) != nullptr; };
  if (is_set("SLURM_JOB_ID"))
    return "before srun write: export BRAID_JOB_TOKEN=$(openssl rand -hex 32)";
  if (is_set("KUBERNETES_SERVICE_HOST"))
    return "write: kubectl create secret generic braid-job --from-literal=token=$(openssl rand "
           "-hex 32), and in the pods' env: {name: BRAID_JOB_TOKEN, valueFrom: {secretKeyRef: "
           "{name: braid-job, key: token}}}";
  return "on every host, before torchrun or what else starts the ranks, write: export "
         "BRAID_JOB_TOKEN=TEXT, with the same TEXT, made once by: openssl rand -hex 32";
}

}  // namespace

Result<std::string> user_secret(const std::string& directory) {
  const std::string folder = directory + "/braid", path = folder + "/" + kFileName;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return file_error(folder, "create", error.value());
  BRAID_ASSIGN_OR_RETURN(const sys::Fd opened, open_folder(folder));
  if (::faccessat(opened.get(), kFileName, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
    BRAID_RETURN_IF_ERROR(publish_secret(opened, path));
  return read_secret(opened, path);
}

Result<std::string> choose_token(const std::string& given, bool is_one_host,
                                 const std::string& store_address, uint16_t store_port) {
  if (!given.empty()) return given;
  if (!is_one_host)
    return unavailable(
        "group: the store at {} is not on loopback, so ranks may be on several hosts and must "
        "share "
        "a secret, BRAID_JOB_TOKEN: {} (docs/security.md)",
        store_address, how_to_share());
  const std::string directory = secret_directory();
  if (directory.empty())
    return unavailable("group: no home directory for a token file: set BRAID_JOB_TOKEN");
  BRAID_ASSIGN_OR_RETURN(const std::string secret, user_secret(directory));
  return fmt::format("{}:{}", secret, store_port);
}

}  // namespace braid::group
