// Messages of GPU memory. They wait: for what the stream holds, for the peer, and for the copy. The
// bytes go through pinned host memory and the host's links: on the device all ranks meet at every
// call (coll/device/pair_rounds.h), where a message is between two. So the peer's end may be host
// memory, and ranks without a GPU may have messages, too.
#pragma once

#include <memory>

#include "base/status.h"
#include "coll/messages/messages.h"
#include "sys/cuda/api.h"
#include "sys/cuda/owned.h"
#include "sys/host/pages.h"

namespace braid::coll::device {

/// A message of GPU memory as one of pinned host memory.
class StagedMessage {
 public:
  /// What this rank can know alone, before its peer waits for it. unsupported in a CUDA graph.
  static Result<StagedMessage> make(const comm::Comm& comm, sys::Cuda& cuda, int gpu,
                                    const Message& message, sys::Stream stream);
  /// Takes the host memory; a message that is sent holds the bytes then that were there when `stream`
  /// came to this. Blocks until the stream is done, or the comm's deadline. What fails here, the peer
  /// must hear of: Exchange::give_up().
  Status stage();
  const Message& on_host() const { return on_host_; }
  /// Copies what was received, as stage() what is sent. Once the message is over, and only when it is
  /// ok.
  Status finish();

 private:
  /// Of a message that ends in whatever thread, maybe without a context.
  struct Free {
    void operator()(void* memory) const;
    sys::Cuda* cuda;
    int gpu;
  };
  StagedMessage() = default;
  Status pin();
  Status copy();

  sys::Cuda* cuda_ = nullptr;
  int gpu_ = 0;
  int64_t timeout_ns_ = 0;
  sys::Stream stream_;
  Message on_gpu_, on_host_;
  sys::Pages memory_;
  std::unique_ptr<void, Free> pinned_;  // ends before memory_
};

/// As coll::send() and recv(), of memory of `gpu`. Where this rank has no host memory for it, or its
/// copy there fails, the comm ends on all ranks.
Status exchange_one(comm::Comm& comm, sys::Cuda& cuda, int gpu, const Message& message,
                    sys::Stream stream);

}  // namespace braid::coll::device
