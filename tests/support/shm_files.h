// What endpoints of libfabric's provider shm leave in /dev/shm when their process is killed: files
// named "<pid>:<uid>:<index>", which stay until somebody removes them. Numbers of processes come
// again: what lay there before is of another process, whatever its name says.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace braid::test {

class ShmFiles {
 public:
  /// Before the processes are started.
  ShmFiles() : before_(all()) {}

  /// What `pids` have made since then and is still there; paths.
  std::vector<std::string> left_by(std::span<const pid_t> pids) const {
    std::vector<std::string> out;
    for (const auto& [path, number] : all()) {
      const auto was = before_.find(path);
      if (was != before_.end() && was->second == number) continue;
      for (const pid_t pid : pids)
        if (path.starts_with(kDirectory + ('/' + std::to_string(pid) + ':'))) out.push_back(path);
    }
    return out;
  }

 private:
  static constexpr const char* kDirectory = "/dev/shm";

  // By path, the number of the file: one that was removed and made anew has another.
  static std::map<std::string, ino_t> all() {
    std::map<std::string, ino_t> out;
    for (const auto& entry : std::filesystem::directory_iterator(kDirectory)) {
      struct stat file{};
      if (stat(entry.path().c_str(), &file) == 0) out[entry.path().string()] = file.st_ino;
    }
    return out;
  }

  std::map<std::string, ino_t> before_;
};

}  // namespace braid::test
