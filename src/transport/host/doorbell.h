// Doorbell: how a rank that waits gives its core away and is woken at once. One 64-byte line of
// shared memory per rank of the host; lanes whose caps().can_ring is true ring the peer's bell
// after every put and every release.
//
//   waiter                                   ringer
//   arm(): asleep = 1, seq_cst fence         put data (release)
//   look at all lanes once more              seq_cst fence
//   nothing: sleep() = futex wait on count   if asleep: count += 1, futex wake
//   disarm(): asleep = 0
//
// The two fences make it impossible that both miss each other: either the waiter's last look sees
// the data, or the ringer sees asleep == 1. sleep() has a deadline all the same, so that a lost
// wake costs time, never a hang.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"

namespace braid::transport {

class Doorbell {
 public:
  virtual ~Doorbell() = default;
  /// Collective over the ranks of the group; ranks on other hosts simply have no bell here (ring()
  /// ignores them). `host_id` is BRAID_HOST_ID; empty: the machine's own.
  static Result<std::unique_ptr<Doorbell>> connect(group::Group& group, Deadline deadline,
                                                   const std::string& host_id = {});

  virtual void ring(int peer) noexcept = 0;
  virtual void arm() noexcept = 0;
  virtual void disarm() noexcept = 0;
  /// After arm(): sleeps until rung or until `until_ns` (now_ns() clock), at most 10 ms. Disarms.
  virtual void sleep(int64_t until_ns) noexcept = 0;
};

}  // namespace braid::transport
