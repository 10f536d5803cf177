// A source's own memory on its GPU, in slots: what its kernel has gathered out of the host's memory,
// for a target of this host to pull (docs/engine_protocol.md, "From the host's memory to a GPU of another
// process").
//
// Threads: the worker's alone.
#pragma once

#include <array>
#include <memory>

#include "engine/regions.h"
#include "sys/cuda/owned.h"

namespace braid::engine {

class Stage {
 public:
  static constexpr uint64_t kSlotBytes = 64 << 20;
  static constexpr size_t kSlots = 4;
  struct Slot {
    sys::DevicePtr address = 0;
    uint64_t transfer = 0;  // that has it; 0: none
  };

  static Result<std::unique_ptr<Stage>> create(Gpu& gpu, Regions& regions);
  ~Stage();

  /// The GPU's queue in which slots are filled.
  size_t queue() const { return queue_; }
  /// The region that targets are lent.
  const Region& region() const { return *region_; }
  /// A slot, the transfer's until it is given back; by its number from 1 on. 0: all are in use.
  uint32_t take(uint64_t transfer);
  const Slot& slot(uint32_t number) const { return slots_[number - 1]; }
  /// Nothing happens when it is not the transfer's.
  void give_back(uint64_t transfer, uint32_t number);
  /// All that it has.
  void give_back(uint64_t transfer);

 private:
  Stage(Gpu& gpu, size_t queue, sys::DevicePtr memory)
      : gpu_(gpu), queue_(queue), memory_(memory) {}

  Gpu& gpu_;
  const size_t queue_;
  const sys::DevicePtr memory_;
  std::shared_ptr<Region> region_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace braid::engine
