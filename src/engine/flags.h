// Flags in the memory of the engine's GPU: what a kernel waits for that needs what is counted.
//
// No processor stores to such a flag: the 1 is copied there, from a pinned word, on a stream of its own,
// so that nothing which the engine or the user has enqueued stands before it. Whoever makes the count be
// reached begins the copy and goes on; a thread of ours looks until the driver says that it is through,
// and ends the ticket then. So of one expectation all counted bytes lie where they belong, then the
// flag becomes 1, then the ticket ends.
//
// Why a GPU that sees 1 sees the bytes. A transfer is counted when its bytes have landed, and the copy of
// its flag begins behind the count:
//   - what the engine's kernels and copy engines brought is counted when the driver has said that their
//     stream is through, so the bytes are in the GPU's memory, or the host's, before the copy is
//     handed to the driver;
//   - what a processor stored, or a NIC into memory of the host, the host has seen before it hands the
//     copy over, and the GPU reads that memory through the host's caches;
//   - not promised of memory of the GPU that a NIC writes itself (GPUDirect): such writes come another
//     way than the flag, would need a flush in between, and this was never run.
// The other half is the reader's: it loads the flag with acquire at system scope (ld.acquire.sys), or
// waits by cuStreamWaitValue64, or it may have old bytes in a cache of its own. A kernel that waits must
// leave the GPU room for the kernels that bring the bytes.
//
// A copy that was begun lands: its memory must stay until the ticket has ended, which forget() does not
// change any more. close() waits for it, 5 s at most.
//
// Threads: find() and write() any; close() one, behind which both answer cancelled.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/counters.h"
#include "sys/cuda/owned.h"

namespace braid::engine {

struct Ground;

class Flags {
 public:
  explicit Flags(Ground& ground) : ground_(ground) {}
  ~Flags() { close(); }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Asks the driver once whose memory the 8 bytes at `at` are; null is no flag. invalid_argument: they
  /// are not aligned, another GPU's, or nobody's (any more). The first one on the GPU makes what
  /// write() needs, which then waits for no kernel that runs.
  Result<Flag> find(std::atomic<uint64_t>* at);
  /// Begins to set a flag of find(). The ticket ends when it is 1, or with the driver's error.
  void write(sys::DevicePtr flag, const TicketPtr& ticket);
  /// Waits until what was begun is through. What is not after 5 s ends as timeout, and may still land.
  void close();

 private:
  struct Pending {
    sys::DevicePtr flag = 0;
    TicketPtr ticket;
  };
  Status check_on_gpu(sys::DevicePtr flag, int device) const;
  Status open();
  Status begin(const Pending& copy);
  void serve();
  Status wait_until_through() const;
  void finish(const Pending& copy, const Status& status);

  Ground& ground_;
  // Held while a copy is handed to the driver, so that none is behind close(); never with another lock.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Pending> begun_;  // the thread takes them
  bool is_ending_ = false;
  std::atomic<int64_t> give_up_at_ns_ = INT64_MAX;
  sys::OwnedStream stream_;
  sys::OwnedEvent event_;
  std::thread thread_;  // begins with the first flag on the GPU
};

}  // namespace braid::engine
