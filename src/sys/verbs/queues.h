// How deep queues are, and who may still put something in.
//
// A completion queue that overruns loses completions and breaks every queue pair on it, and nothing
// but counting prevents it. Every work request of ours makes exactly one completion, so there are
// as many places in the completion queue as there can be work requests: a request takes a credit
// of its kind before it is posted and gives it back when its completion has been fetched.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace braid::sys::verbs {

/// What the device allows.
struct QueueLimits {
  uint32_t max_work_requests = 0;  // of one queue
  uint32_t max_completions = 0;    // of one completion queue
};

struct QueueSizes {
  uint32_t transfers = 0;   // writes and reads of ours on their way
  uint32_t sends = 0;       // messages of ours on their way
  uint32_t receives = 0;    // memory offered for messages
  uint32_t immediates = 0;  // receives without memory that wait for immediates
  uint64_t completions() const { return uint64_t{transfers} + sends + receives + immediates; }
  friend bool operator==(const QueueSizes&, const QueueSizes&) = default;
};

/// The sizes for `depth` operations, less where the device allows less. invalid_argument for a
/// depth of 0, unavailable for a device that cannot hold one operation of each kind.
Result<QueueSizes> plan_queues(uint32_t depth, const QueueLimits& limits);

class Credits {
 public:
  explicit Credits(uint32_t count = 0) : size_(count), left_(count) {}
  bool take() {
    if (left_ == 0) return false;
    --left_;
    return true;
  }
  void give() { ++left_; }
  uint32_t taken() const { return size_ - left_; }

 private:
  uint32_t size_, left_;
};

}  // namespace braid::sys::verbs
