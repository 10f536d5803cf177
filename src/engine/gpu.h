// The GPU that an engine has memory of: its stream, the kernel that copies pages, and pinned memory
// of the host for what no kernel reaches.
//
// What is begun is done in order, so one number says how far all of it is.
//
// Threads: the worker's; map_host() and unmap_host() any.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "engine/copy_pages.h"
#include "sys/cuda/loaded_kernels.h"
#include "sys/cuda/owned.h"

namespace braid::engine {

class Gpu {
 public:
  /// unavailable without a driver, or without kernels in this build.
  static Result<std::unique_ptr<Gpu>> open(sys::Cuda& cuda, int device);
  ~Gpu();

  int device() const { return device_; }
  sys::Cuda& cuda() const { return cuda_; }
  /// Makes the device the calling thread's.
  Status use() const { return cuda_.use_device(device_); }

  /// Begins copies, as many as there is room for: `begun` of them. The mark by which done() tells
  /// that they are; 0 when there is no room now.
  Result<uint64_t> begin(std::span<const PageCopy> copies, size_t& begun);
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

  /// Memory of the host as the GPU sees it; 0 where the driver cannot pin it.
  sys::DevicePtr map_host(std::byte* base, uint64_t bytes) const;
  void unmap_host(std::byte* base) const;

 private:
  static constexpr size_t kLists = 4, kListCopies = 8192, kSlots = 4;
  struct List {
    PageCopy* copies = nullptr;
    sys::DevicePtr address = 0;
    sys::OwnedEvent event;
    uint64_t mark = 0;
    bool is_flying = false;
  };
  Gpu(sys::Cuda& cuda, int device) : cuda_(cuda), device_(device) {}
  Status set_up();

  sys::Cuda& cuda_;
  const int device_;
  uint32_t num_blocks_ = 0;
  std::unique_ptr<std::byte[]> pinned_;
  sys::RegisteredHost registered_;
  std::shared_ptr<sys::LoadedKernels> kernels_;
  sys::Kernel kernel_;
  sys::OwnedStream stream_;
  std::array<List, kLists> lists_;
  size_t next_list_ = 0;
  std::array<Slot, kSlots> slots_;
  uint64_t begun_ = 0, done_ = 0;
};

}  // namespace braid::engine
