// The GPU that an engine has memory of: queues of copies, kernels that copy pages, and pinned memory of
// the host for what no kernel reaches.
//
// Each source has a queue, a stream. In one queue all targets of the same sources would copy out of the
// first of them, which has one link for all, and then out of the second: 16 GiB of two trainers came into
// two workers at 0.64 of what all copies at once have.
//
// What is begun is told to be done in order, so one number says how far all of it is. It is done in
// order in each queue.
//
// Threads: the worker's; map_host() and unmap_host() any.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/copy_pages.h"
#include "sys/cuda/loaded_kernels.h"
#include "sys/cuda/owned.h"
#include "sys/host/pages.h"

namespace braid::engine {

class Gpu {
 public:
  /// unavailable without a driver, or without kernels in this build.
  static Result<std::unique_ptr<Gpu>> open(sys::Cuda& cuda, int device);
  ~Gpu();

  int device() const { return device_; }
  sys::Cuda& cuda() const { return cuda_; }
  /// Makes the device the calling thread's, which is one of ours: from now on it may look whether copies
  /// are through while other threads capture streams.
  Status use() const;
  /// 8 bytes of pinned memory that hold 1.
  sys::DevicePtr one() const { return one_; }

  /// One for each who asks, until there are no more: then one again that somebody else has. All but the
  /// first are made here.
  Result<size_t> next_queue();
  /// Begins copies in a queue, as many as there is room for: `begun` of them. The mark by which done()
  /// tells that they are; 0 when there is no room now.
  Result<uint64_t> begin(size_t queue, std::span<const PageCopy> copies, size_t& begun);
  /// Begins the job of a list of pages; as above. `is_near`: both ends are memory of GPUs.
  Result<uint64_t> begin(size_t queue, PageJob job, bool is_near);
  /// Begins long copies, by the driver's copy engines; as above, all of them.
  Result<uint64_t> begin(size_t queue, std::span<const sys::DeviceCopy> copies);
  /// From so many bytes on a copy is long: copy engines reach a link's rate by themselves.
  static constexpr uint64_t kLongBytes = 512 << 10;
  /// Whether a number of that list was above what the job allows. Once it is done.
  bool had_trouble(uint64_t mark) const;
  /// All up to this mark are done.
  Result<uint64_t> done();
  /// The last mark that was given.
  uint64_t last_mark() const { return begun_; }
  /// Waits, some seconds at most, until all that was begun is done.
  void settle();

  /// Pinned memory of the host, for one use at a time.
  struct Slot {
    std::byte* memory = nullptr;
    sys::DevicePtr address = 0;
    uint64_t busy_until = 0;  // mark
    bool is_held = false;     // by who waits to read it
  };
  static constexpr uint64_t kSlotBytes = 4 << 20;
  /// Null when all are in use.
  Slot* free_slot();

  /// Memory of the host as the GPU sees it; 0 where the driver cannot pin it. What lies within memory
  /// that was mapped before shares its pin, which stays until all of them are unmapped. The driver
  /// takes no other overlap: 0.
  sys::DevicePtr map_host(std::byte* base, uint64_t bytes);
  void unmap_host(const std::byte* base);

 private:
  static constexpr size_t kLists = 4, kListCopies = 8192, kSlots = 4, kFlights = 16;
  static constexpr uint64_t kListBytes = kListCopies * sizeof(PageCopy);
  static constexpr uint64_t kPinnedBytes =
      kLists * kListBytes + kSlots * kSlotBytes + kFlights * sizeof(uint32_t) + sizeof(uint64_t);
  struct List {
    PageCopy* copies = nullptr;
    sys::DevicePtr address = 0;
    bool is_taken = false;
  };
  struct Queue {
    sys::OwnedStream stream;
    sys::DeviceMemory
        fetched;  // a list; the next one is brought behind the job that reads this one
  };
  /// A launch under way.
  struct Flight {
    sys::OwnedEvent event;
    uint64_t mark = 0;
    bool is_flying = false;
    List* list = nullptr;         // that it reads
    uint32_t* trouble = nullptr;  // pinned; set by the kernel
    sys::DevicePtr trouble_address = 0;
  };
  /// Memory of the host that the driver has pinned for us. No two overlap.
  struct PinnedMemory {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    sys::DevicePtr address = 0;
    size_t num_uses = 0;
    bool holds(const std::byte* at) const { return at >= base && at < base + bytes; }
  };
  Gpu(sys::Cuda& cuda, int device) : cuda_(cuda), device_(device) {}
  Status set_up();
  Status make(Queue& queue);
  /// Lets the job read its list on the GPU, where that is worth it.
  Status fetch_list(Queue& queue, PageJob& job);
  Status share_out(std::byte* base, sys::DevicePtr address);
  /// The next launch's; null when all fly.
  Result<Flight*> free_flight();
  Result<uint64_t> fly(Flight& flight, const Queue& queue);
  void land(Flight& flight);

  sys::Cuda& cuda_;
  const int device_;
  uint32_t num_sms_ = 0;
  sys::Pages pinned_;
  sys::RegisteredHost registered_;
  std::shared_ptr<sys::LoadedKernels> kernels_;
  sys::Kernel kernel_, list_kernel_, fetch_kernel_;
  static constexpr size_t kQueues = 8;
  std::array<Queue, kQueues> queues_;
  size_t num_queues_given_ = 0;
  std::array<Flight, kFlights> flights_;
  size_t next_flight_ = 0;
  std::array<List, kLists> lists_;
  std::vector<uint64_t> troubled_;  // marks, the latest
  std::array<Slot, kSlots> slots_;
  sys::DevicePtr one_ = 0;
  uint64_t begun_ = 0, done_ = 0;
  std::mutex pins_mutex_;  // not held while the driver pins, which takes seconds for much memory
  std::vector<PinnedMemory> pins_;
};

}  // namespace braid::engine
