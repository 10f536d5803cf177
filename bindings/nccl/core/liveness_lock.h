// A process's sign of life on a file that several processes have open: a lock per seat, which the
// kernel takes away when the process ends, however it ends, and which processes of other containers
// see too. Numbers of processes would do neither: they differ between containers, and are used
// again.
//
// The locks are POSIX record locks: they belong to the process, so a fork has none of them and
// keeps none alive. But closing any descriptor of the file gives all of them up. So the descriptors
// of one file are kept together until the last LivenessLock on it in this process ends; nobody else may
// open that file and close it again.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "sys/fd.h"

namespace braid::nccl {

class LivenessLock {
 public:
  /// driver when the file cannot be asked who it is.
  static Result<LivenessLock> on(sys::Fd fd);

  /// Until the last LivenessLock of this process on the file ends, or the process does.
  Status claim(uint32_t seat);
  /// Whether a living process other than this one has claimed it.
  bool is_claimed_by_another(uint32_t seat) const;
  /// Whether the file is the one that `path` names now.
  bool is_named(const char* path) const;
  /// Ends this one's part: claims of the process may go.
  void end() { file_.reset(); }

 private:
  struct File;
  explicit LivenessLock(std::shared_ptr<File> file) : file_(std::move(file)) {}
  std::shared_ptr<File> file_;
};

}  // namespace braid::nccl
