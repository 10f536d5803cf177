// Reasons: where communicators and calls went, and why to NCCL, for braid.stats().
//
// Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "bindings/nccl/calls.h"
#include "bindings/nccl/comms.h"

namespace braid::nccl {

/// Why one call went to NCCL.
enum class Left : int {
  kUnseen,         // its communicator was made out of braid's sight
  kCommunicator,   // which is NCCL's, or is still being made
  kOverNodes,      // what does not go over several nodes
  kMessage,        // sends and receives
  kUsersOperator,  // a reduction that the program made
  kSettings,       // BRAID_NCCL_OPS, BRAID_NCCL_LEAST, _MOST, or the limits of BRAID_TUNE=off
  kCaptured,       // in a graph, before the communicator was set up for it
  kFaster,         // NCCL won the race, or there is no memory
};
inline constexpr size_t kNumLeft = 8;

/// Of a call that was handed on. `entry` may be null.
Left why_left(const Settings& settings, const Entry* entry, const Call& call);

class Reasons {
 public:
  void note(Left why) { calls_[static_cast<size_t>(why)].fetch_add(1, std::memory_order_relaxed); }
  void note_taken(bool is_over_nodes);
  /// A communicator; the words of a great many kinds are one.
  void note_left(const std::string& why);
  /// {"communicators": {"taken": N, "taken_over_nodes": N, "left": {WHY: N}}, "calls": {WHY: N}}
  std::string json() const;

 private:
  std::array<std::atomic<uint64_t>, kNumLeft> calls_{};
  mutable std::mutex mutex_;  // of what follows
  uint64_t num_taken_ = 0, num_over_nodes_ = 0;
  std::map<std::string, uint64_t> left_;
};

}  // namespace braid::nccl
