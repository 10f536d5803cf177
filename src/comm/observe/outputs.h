// Where a process's journals go: files and a port. A process may have many comms and has one of
// each of these, so that a trace shows all of them beside each other.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/observe/journal.h"
#include "comm/observe/metrics_server.h"

namespace braid::comm {

/// Journals of comms that are open, and of the last ones that were closed.
class Shelf {
 public:
  explicit Shelf(uint64_t most_retired_notes = 1 << 19) : most_retired_notes_(most_retired_notes) {}
  void add(std::shared_ptr<Journal> journal);
  /// Its comm is closed. What it noted is kept for a while: at most 64 such journals, with
  /// `most_retired_notes`, and the last one in any case.
  void retire(const Journal* journal);
  /// Its comm is closed, and nobody will ask for it.
  void remove(const Journal* journal);
  std::vector<std::shared_ptr<Journal>> journals() const;
  /// Whether one of them is of a comm that is open.
  bool has_open() const;

 private:
  struct Place {
    std::shared_ptr<Journal> journal;
    bool is_retired = false;
  };
  const uint64_t most_retired_notes_;
  mutable std::mutex mutex_;
  std::vector<Place> places_;  // oldest first
};

/// A timeline in a file: written when a comm is closed or fails, and at the end of the process.
class TraceFile {
 public:
  /// The one of this process at `path`. `host` is sys::host_id().
  static std::shared_ptr<TraceFile> at(const std::string& path, const std::string& host);
  TraceFile(std::string path, std::string host);
  Shelf shelf;
  /// Failures are logged: a trace is no reason to end a program.
  void write();
  const std::string& path() const { return path_; }

 private:
  const std::string path_, host_;
  std::mutex writing_;
};

/// The last calls, as torch's flight recorder has them, in a file.
class FlightFile {
 public:
  static std::shared_ptr<FlightFile> at(const std::string& path);
  explicit FlightFile(std::string path) : path_(std::move(path)) {}
  Shelf shelf;
  void write(int64_t timeout_ns);
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  std::mutex writing_;
};

/// A port on which the counts of the shelf are served while somebody holds this.
class MetricsPort {
 public:
  /// Null, and a line in the log, when it cannot be served.
  static std::shared_ptr<MetricsPort> at(uint16_t port);
  explicit MetricsPort(uint16_t port);
  Shelf shelf;
  bool is_served() const { return server_ != nullptr; }

 private:
  std::string page() const;
  std::unique_ptr<MetricsServer> server_;  // last: it uses the shelf
};

/// Counts the comms that this process made as `job_rank`: 0, 1, 2, ...
int next_comm_index(int job_rank);

}  // namespace braid::comm
