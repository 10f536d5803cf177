// Ranks as processes: this test program runs itself again, once per rank, with one scenario. They
// meet through files, so that ranks in different network namespaces can meet too.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "group/group.h"

namespace braid::test {

inline constexpr int kSkipExit = 77;

inline bool wait_for_file(const std::string& path, Deadline deadline) {
  while (!std::filesystem::exists(path)) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline void write_file(const std::string& path, std::string_view text) {
  std::ofstream(path + ".part", std::ios::binary) << text;
  std::filesystem::rename(path + ".part", path);
}

inline std::string read_file(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

/// A Group whose blobs are files in one directory.
class FileGroup final : public group::Group {
 public:
  FileGroup(std::string directory, int rank, int size)
      : directory_(std::move(directory)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                            Deadline deadline) override {
    const std::string stem = directory_ + "/round" + std::to_string(round_++) + ".";
    write_file(stem + std::to_string(rank_), blob);
    std::vector<std::string> out;
    for (int r = 0; r < size_; ++r) {
      if (!wait_for_file(stem + std::to_string(r), deadline))
        return timeout("exchange {}: rank {} is late", topic, r);
      out.push_back(read_file(stem + std::to_string(r)));
    }
    return out;
  }
  Status barrier(std::string_view topic, Deadline deadline) override {
    return exchange(topic, "", deadline).status();
  }
  bool broken() const noexcept override { return false; }
  Status fate() const override { return {}; }
  void report(const Status&) override {}
  void leave() override {}

 private:
  std::string directory_;
  int rank_;
  int size_;
  int round_ = 0;
};

/// A directory of its own, gone with the object.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    char name[] = "/tmp/braid_test_XXXXXX";
    path_ = mkdtemp(name);
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Runs this program again as rank `rank` of `scenario`: the one test that `filter` names, which
/// finds these words in its environment. A new program, not a mere fork: a child that was forked
/// from a program with other threads may wait for ever for a lock that one of them held.
inline pid_t spawn_rank(const std::string& filter, const std::string& scenario,
                        const std::string& directory, int rank) {
  const std::string filter_flag = "--gtest_filter=" + filter;
  const pid_t pid = fork();
  if (pid != 0) return pid;
  unsetenv("GTEST_TOTAL_SHARDS");  // the scenario is one test, and may lie in another part
  unsetenv("GTEST_SHARD_INDEX");
  setenv("BRAID_TEST_SCENARIO", scenario.c_str(), 1);
  setenv("BRAID_TEST_DIRECTORY", directory.c_str(), 1);
  setenv("BRAID_TEST_RANK", std::to_string(rank).c_str(), 1);
  execl("/proc/self/exe", "rank", filter_flag.c_str(), "--gtest_also_run_disabled_tests",
        "--gtest_brief=1", nullptr);
  _exit(126);
}

/// What a spawned rank was told.
struct SpawnedRank {
  std::string scenario = std::getenv("BRAID_TEST_SCENARIO");
  std::string directory = std::getenv("BRAID_TEST_DIRECTORY");
  int rank = std::atoi(std::getenv("BRAID_TEST_RANK"));
};

/// The exit status, 128 + signal, or -1 when the deadline passed (and the child was killed).
inline int join_rank(pid_t pid, Deadline deadline) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace braid::test
