// CopyEnginePuts: copies by the copy engines into peers' memory, which is what the base link's parts are.
//
// A copy engine takes 5 us to begin a copy on a stream, so what goes to several peers at a time is
// enqueued as one batch. All of it goes on one stream: on a stream per peer, copies that ran at the
// same time got 214 GB/s together, in turn they get 384 (all-gather of 256 MiB, 4 H200). It is a
// stream of ours, since the caller's may be the legacy one, which takes no batches.
//
// Threads: as comm::Device.
#pragma once

#include "base/status.h"
#include "comm/device/device.h"

namespace braid::coll::device {

class CopyEnginePuts {
 public:
  CopyEnginePuts(comm::Device& device, sys::Stream stream) : device_(device), stream_(stream) {}

  /// What is sent from now on starts after what the caller's stream holds.
  Status begin();
  /// ... after `point`.
  Status wait(sys::Event point) { return device_.order().wait(ours(), point); }
  /// To be sent with the next send(), into `peer`'s memory at `to`: one copy per peer at most.
  void add(int peer, sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes) {
    batch_.add({device_.rank(), peer, sys::pointer_to<const std::byte>(from),
                sys::pointer_to<std::byte>(to), bytes});
  }
  Status send();
  /// Work on `stream` from now on starts after everything sent so far.
  Status join(sys::Stream stream);

 private:
  sys::Stream ours() const {
    return device_.size() == 2 ? stream_ : device_.links().base().stream();
  }

  comm::Device& device_;
  const sys::Stream stream_;
  comm::LinkPart batch_;
};

}  // namespace braid::coll::device
