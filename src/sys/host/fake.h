// Cores that are on paper: which ones a thread may use, what it asked for, and a kernel that refuses.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "sys/host/cores.h"

namespace braid::sys {

/// One mask for all threads that ask. Threads: any.
class FakeCores : public Cores {
 public:
  explicit FakeCores(CoreSet usable) : usable_(std::move(usable)) {}

  /// From now on use() fails so, as it does in a sandbox that forbids the call; ok: it works again.
  void fail_with(Status why) {
    const std::lock_guard lock(mutex_);
    why_ = std::move(why);
  }
  /// What was asked for, granted or not, in order.
  std::vector<CoreSet> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  CoreSet usable() override {
    const std::lock_guard lock(mutex_);
    return usable_;
  }
  Status use(const CoreSet& cores) override {
    const std::lock_guard lock(mutex_);
    asked_.push_back(cores);
    if (!why_.ok()) return why_;
    usable_ = cores;
    return {};
  }

 private:
  mutable std::mutex mutex_;
  CoreSet usable_;
  Status why_;
  std::vector<CoreSet> asked_;
};

}  // namespace braid::sys
