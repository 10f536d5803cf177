// What the next call on GPU memory would do, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "coll/device/route.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "plan/plan.h"

namespace braid::coll::device {

struct Explanation {
  plan::Op op;
  uint64_t bytes;  // as plan::Request counts: the buffer, or all ranks' blocks
  int num_ranks;
  int gpu;
  Path path;
  struct Link {
    std::string name;
    bool is_on = false;
    std::string how;   // bytes go; or why it is off
    double share = 0;  // of a message by copy engines
  };
  std::vector<Link> links = {};  // the base link, then those beside it
  double link_cap_gbps;          // 0: not held
  uint64_t memory_bytes;         // of this GPU, that the comm takes; the scratch among it
  uint64_t scratch_bytes;        // where unregistered results land
  uint64_t direct_pieces = 0;    // direct kernels by which they go instead; 0: through scratch
  bool is_relayed = false;       // each rank passes registered results on while they land
  std::string balanced = {};     // the link whose share the next two tell of
  double tuned_share = 0;        // what tuning found for it
  bool is_balanced = false;      // whether the share follows what calls measure
  comm::Registrations::Summary registered{};
  uint64_t windows = 0;  // of the balancer, over all operations and sizes
  uint64_t moves = 0;    // of this operation and size
};

/// For the comm's GPU. invalid_argument before the first call on GPU memory, which chooses it.
/// Threads: as the comm's calls.
Result<Explanation> explain(comm::Comm& comm, plan::Op op, uint64_t bytes);

/// One short paragraph; and an object with op, bytes, ranks, gpu, path, link_cap_gbps,
/// memory_bytes, scratch_bytes, direct_pieces, relayed, links [{name, state, share, why}],
/// registered {spans, bytes, remapped}, balance {on, tuned_share, windows, moves}.
std::string to_words(const Explanation& explanation);
std::string to_json(const Explanation& explanation);

}  // namespace braid::coll::device
