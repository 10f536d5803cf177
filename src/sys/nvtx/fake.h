// A profiler in words, for tests.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "sys/nvtx/api.h"

namespace braid::sys {

class FakeNvtx final : public Nvtx {
 public:
  void push(const char* message, uint64_t payload) override {
    add(std::string("push ") + message + " " + std::to_string(payload));
  }
  void pop() override { add("pop"); }
  /// What was told, oldest first.
  std::vector<std::string> told() const {
    const std::lock_guard lock(mutex_);
    return told_;
  }

 private:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    told_.push_back(std::move(line));
  }
  mutable std::mutex mutex_;
  std::vector<std::string> told_;
};

}  // namespace braid::sys
