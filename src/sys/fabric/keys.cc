// Keys that cannot be guessed, and the one thing a killed process leaves behind.
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "base/check.h"
#include "sys/fabric/api.h"

namespace braid::sys {

uint64_t random_key() {
  uint64_t key = 0;
  while (key == 0) {
    // Up to 256 bytes never come short once seeded.
    const ssize_t got = getrandom(&key, sizeof key, 0);
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

// A process that was killed still answers kill(pid, 0) while the kernel takes it apart, which is
// when its peers hear of it, and after that until its parent has asked for it.
bool is_gone(pid_t pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  // "pid (name) state ppid pgrp session tty tpgid flags ...", and a name may hold anything.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  char state = ' ';
  int64_t skipped = 0;
  uint64_t flags = 0;
  fields >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> flags;
  constexpr uint64_t kExiting = 4;  // PF_EXITING of Linux's sched.h
  return fields && (state == 'Z' || state == 'X' || (flags & kExiting) != 0);
}

}  // namespace

void remove_dead_shm_file(std::string_view name) {
  const std::string file = shm_file_of(name);
  const pid_t pid = static_cast<pid_t>(std::strtol(file.c_str(), nullptr, 10));
  if (pid <= 0 || !is_gone(pid)) return;
  unlink(("/dev/shm/" + file).c_str());
}

}  // namespace braid::sys
