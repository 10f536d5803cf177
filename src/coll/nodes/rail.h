// Rail: a rank's only door to other nodes, for collectives on GPUs. It joins the ranks with one
// place in their nodes, one on each node; they are known by their nodes' numbers. Whose network it
// is, is the rail's matter: NCCL's, with all of its plug-ins (bindings/nccl/core/nodes), or none at
// all, in tests.
//
// Order    all ranks of a rail make the same calls in the same order; what matches a send is the
//          receive of the same call on the other rank. Every call is enqueued on its stream, and
//          done when the stream is.
// Memory   any device memory. Nothing is copied aside: what is sent must not change before the
//          stream has come past the call.
// Errors   ok: enqueued. What fails later, or on another rank, is in error(). After a call that was
//          refused all later ones are, and error() says so: this rank is behind the others, and what
//          they sent in that call must not come out of a later receive.
// Graphs   calls may be captured where the rail's network can.
// Threads  one at a time; error() and abort() by any.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "sys/cuda/types.h"

namespace braid::coll::nodes {

/// What a rank sends to one node and receives from one, at the same time. No bytes: nothing, and
/// nobody waits for it.
struct Passage {
  sys::DevicePtr send = 0;
  uint64_t send_bytes = 0;
  int to = 0;
  sys::DevicePtr recv = 0;
  uint64_t recv_bytes = 0;
  int from = 0;
};

class Rail {
 public:
  virtual ~Rail() = default;

  virtual Status exchange(const Passage& passage, sys::Stream stream) = 0;
  /// `bytes` of every node to `recv`, in the order of nodes: for few of them, in as few steps as the
  /// network has.
  virtual Status all_gather(sys::DevicePtr send, sys::DevicePtr recv, uint64_t bytes,
                            sys::Stream stream) = 0;
  /// Trouble that showed after a call was enqueued, here or on another rank.
  virtual Status error() = 0;
  /// Ends what is enqueued, and waits until it has ended. Later calls fail. Twice is fine.
  virtual void abort() = 0;
};

}  // namespace braid::coll::nodes
