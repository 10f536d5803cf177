// Keys that cannot be guessed, and the one thing a killed process leaves behind.
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/check.h"
#include "sys/fabric/api.h"

namespace braid::sys {

uint64_t random_key() {
  uint64_t key = 0;
  while (key == 0) {
    const ssize_t got =
        getrandom(&key, sizeof key, 0);  // up to 256 bytes never come short once seeded
    BRAID_CHECK(got == sizeof key || errno == EINTR, "getrandom answered {}, errno {}", got, errno);
    key &= ~(uint64_t{1} << 63);
  }
  return key;
}

namespace {

constexpr std::string_view kShmPrefix = "fi_shm://";

// The file is named by the endpoint: "<pid>", or "<pid>:<uid>:<index>". Anything else is left
// alone: the name came from another process and must not lead out of the directory.
std::string shm_file_of(std::string_view name) {
  if (!name.starts_with(kShmPrefix)) return {};
  std::string file(name.substr(kShmPrefix.size()));
  file.resize(std::min(file.size(), file.find('\0')));
  for (const char c : file)
    if (!std::isdigit(static_cast<unsigned char>(c)) && c != ':') return {};
  return file;
}

// A process that was killed and whose parent has not asked for it yet still answers kill(pid, 0).
bool is_gone(pid_t pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  const size_t name_end = line.rfind(')');  // "pid (name) state ...", and a name may hold anything
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  return line[name_end + 2] == 'Z' || line[name_end + 2] == 'X';
}

}  // namespace

void remove_dead_shm_file(std::string_view name) {
  const std::string file = shm_file_of(name);
  const pid_t pid = static_cast<pid_t>(std::strtol(file.c_str(), nullptr, 10));
  if (pid <= 0 || !is_gone(pid)) return;
  unlink(("/dev/shm/" + file).c_str());
}

}  // namespace braid::sys
