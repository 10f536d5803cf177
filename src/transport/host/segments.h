// Segments: one piece of shared memory per rank, mapped by every rank that can reach it. The one
// place where lanes and the doorbell meet sys/shm; collective, and all ranks come out of it with
// the same answer.
//
//   1. create my segment, touch every page of it
//      exchange: pid, fd, bytes, shape, nonce, host; or why not
//   2. open the peers' segments, touch, check nonces
//      exchange: ok, or why not
//
// After step 1 every rank knows of every refusal, so none waits for a rank that gave up; after step
// 2 every mapping exists, so the first put faults nowhere. A process id may name another process on
// another host or after a restart: the nonce at the end of a segment proves that it is the one that
// was meant.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/shm/api.h"

namespace braid::transport {

struct SegmentRequest {
  std::string topic;           // names the exchange and the object in messages: "lane shm"
  size_t bytes = 0;            // of every rank's segment
  std::string shape;           // options that must agree on all ranks, as text without spaces
  bool needs_one_host = true;  // false: ranks on other hosts simply have no segment here
  std::string host_id = {};    // of this rank; empty: the machine's own
  sys::SharedMemory* memory = nullptr;  // null: the kernel's
  Status refusal = {};                  // not ok: this rank cannot; every rank gets this Status
};

class Segments {
 public:
  explicit Segments(std::vector<sys::Segment> by_rank) : by_rank_(std::move(by_rank)) {}

  int size() const { return static_cast<int>(by_rank_.size()); }
  /// First byte of `rank`'s segment (zero-filled, page-aligned, request.bytes long); null on
  /// another host.
  std::byte* of(int rank) const { return by_rank_[static_cast<size_t>(rank)].data(); }

 private:
  std::vector<sys::Segment> by_rank_;
};

/// Collective. Errors: whatever kept a rank from creating or opening, naming that rank; unavailable
/// when the ranks do not share a host and must; invalid_argument when shapes differ; the group's
/// own Status when an exchange fails.
Result<Segments> share_segments(group::Group& group, const SegmentRequest& request,
                                Deadline deadline);

}  // namespace braid::transport
