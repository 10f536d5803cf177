#include "sys/fabric/shm_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"

namespace braid::sys {

namespace {

constexpr std::string_view kShmPrefix = "fi_shm://";
constexpr const char* kDirectory = "/dev/shm";
constexpr int64_t kTurnNs = 200'000'000;
constexpr useconds_t kMakerUs = 200;  // from a file's name until its maker counts; microseconds

// "<process>:<user>:<index>"; empty for anything else: the name came from another process and must not
// lead out of the directory.
std::string shm_file_of(std::string_view name) {
  if (!name.starts_with(kShmPrefix)) return {};
  std::string file(name.substr(kShmPrefix.size()));
  file.resize(std::min(file.size(), file.find('\0')));
  int num_colons = 0;
  for (const char c : file) {
    if (!std::isdigit(static_cast<unsigned char>(c)) && c != ':') return {};
    num_colons += c == ':' ? 1 : 0;
  }
  return num_colons == 2 ? file : std::string();
}

// Who opens the file for writing while the lease holds waits, and its holder gets a signal: not SIGIO,
// which would end the process, but one that is ignored unless somebody asks for it. Such a one has broken
// the lease when a moment has passed.
bool is_unused(int fd) {
  if (fcntl(fd, F_SETSIG, SIGURG) != 0 || fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return false;
  usleep(kMakerUs);
  return fcntl(fd, F_GETLEASE) == F_RDLCK;
}

// The process is going, and its memory and files may be there still. One that waits for its parent (a
// zombie) has none any more, once its last thread has gone.
bool is_being_taken_apart(pid_t pid) {
  if (pid <= 0 || pid == getpid()) return false;
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  // "pid (name) state ppid pgrp session tty tpgid flags" and ten more before the threads; a name may
  // hold anything.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  char state = ' ';
  int64_t skipped = 0, num_threads = 0;
  uint64_t flags = 0;
  fields >> state;
  for (int i = 0; i < 5; ++i) fields >> skipped;
  fields >> flags;
  for (int i = 0; i < 10; ++i) fields >> skipped;
  fields >> num_threads;
  constexpr uint64_t kExiting = 4;  // PF_EXITING of Linux's sched.h
  const bool is_zombie = state == 'Z' || state == 'X';
  return fields && (is_zombie ? num_threads > 1 : (flags & kExiting) != 0);
}

// By their files.
std::vector<std::string> endpoints_of_this_user() {
  const std::string user = fmt::format(":{}:", getuid());
  std::vector<std::string> names;
  std::error_code error;  // what cannot be read is not cleaned
  std::filesystem::directory_iterator at(kDirectory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::string name = fmt::format("{}{}", kShmPrefix, at->path().filename().string());
    if (name.find(user) != std::string::npos && !shm_file_of(name).empty())
      names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

ShmFilesTurn::ShmFilesTurn() : directory_(open(kDirectory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const Deadline deadline = Deadline::after_ns(kTurnNs);
  while (directory_.get() >= 0) {
    is_held_ = flock(directory_.get(), LOCK_EX | LOCK_NB) == 0;
    if (is_held_ || deadline.passed()) return;
    usleep(200);
  }
}

bool remove_unused_shm_file(std::string_view name, const ShmFilesTurn& turn) {
  const std::string file = shm_file_of(name);
  if (file.empty()) return true;
  const std::string path = fmt::format("{}/{}", kDirectory, file);
  const Fd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) return errno == ENOENT;
  struct stat opened{}, named{};
  if (fstat(fd.get(), &opened) != 0 || !S_ISREG(opened.st_mode) || opened.st_uid != geteuid() ||
      !turn.is_held() || !is_unused(fd.get()))
    return false;
  // Another program may have found the same and removed it, and a third one made another by this name.
  if (stat(path.c_str(), &named) != 0) return errno == ENOENT;
  return named.st_ino == opened.st_ino &&
         unlink(path.c_str()) == 0;  // the lease goes with the descriptor
}

void remove_dead_shm_files(int64_t patience_ns) {
  const Deadline deadline = Deadline::after_ns(patience_ns);
  for (const std::string& name : endpoints_of_this_user()) {
    const auto pid = static_cast<pid_t>(std::strtol(shm_file_of(name).c_str(), nullptr, 10));
    while (true) {
      const bool is_going =
          is_being_taken_apart(pid) && !deadline.passed();  // asked before it is tried
      {
        const ShmFilesTurn turn;
        if (!turn.is_held() && deadline.passed()) return;  // who has it may have been stopped
        if (turn.is_held() && remove_unused_shm_file(name, turn)) break;
        if (turn.is_held() && !is_going) break;
      }
      usleep(200);
    }
  }
}

}  // namespace braid::sys
