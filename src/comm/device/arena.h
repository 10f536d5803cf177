// SymmetricArena: the memory of its GPU that a comm takes, and the peers' that lies alike: a signal pad
// of barriers, a scratch, and an area for every kind of kernel that has registered one.
//
// A room is more of it for large messages, where a comm began with little: taken when the first of
// them comes, and given back when it is of no use. Nothing that is under way is moved. Calls know
// scratch and areas by their addresses, which they are launched with: those before go on where they
// were, and those behind use the room's. What kernels count goes on, too: an area that begins as
// zeros is one in which all calls before have been heard of.
//
// Threads: as comm::Device. The memory is freed when no rank of this process holds it any longer
// (nvlink/lent_memory.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "comm/device/call_order.h"
#include "comm/device/memory_layout.h"
#include "comm/device/symmetric_address.h"
#include "group/group.h"
#include "sys/cuda/api.h"
#include "transport/nvlink/window.h"

namespace braid::comm {

/// The area of one kind of kernel, as calls see it now.
struct Area {
  uint64_t bytes = 0;           // 0: there is none
  uint64_t limit_bytes = 0;     // AreaRequest::limit_bytes; 0 where the GPUs have no NVLink for it
  sys::DevicePtr counters = 0;  // 32 bytes of this GPU's own memory, zeros before the first call
  SymmetricAddress landing;
  /// Of `rank`; its first zero_bytes are zeros before the first call.
  sys::DevicePtr at(int rank) const { return landing.at(rank); }
};

class SymmetricArena {
 public:
  SymmetricArena(group::Group& group, sys::Cuda& cuda, int ordinal)
      : group_(group), cuda_(cuda), ordinal_(ordinal) {}
  /// In the context of the GPU, after close().
  ~SymmetricArena();
  SymmetricArena(const SymmetricArena&) = delete;
  SymmetricArena& operator=(const SymmetricArena&) = delete;

  /// Takes the memory, and zeros it. Of this rank alone; `order` outlives it.
  Status allocate(const ArenaRequest& request, CallOrder& order);
  /// Collective: all ranks reach each other's, or get the same verdict. `own`: what kept this one
  /// from having any.
  Status share(Status own, Deadline deadline);
  /// Ends the windows on the peers' memory; nothing may use it afterwards.
  void close();

  /// This rank's scratch and the peers', of scratch_bytes() each.
  SymmetricAddress scratch() const;
  uint64_t scratch_bytes() const { return newest().layout.scratch_bytes(); }
  Area area(std::string_view name) const;
  /// From now on no message goes by areas that need NVLink between all pairs. Names them.
  std::string lacks_whole_stores();
  /// What all ranks must have alike, the areas with their limits: "spare:16777216,packets:131072,".
  std::string shape() const;
  /// Of this GPU's memory, all that the comm has of it, but for some KiB.
  uint64_t memory_bytes() const {
    return arena_.layout.bytes() + spare_bytes_ + (room_ ? room_->layout.bytes() : 0);
  }

  /// Collective, between calls: from now on they use a larger scratch, and larger areas of these
  /// names. Graphs that were captured before use what they used. Not ok on all ranks: one has no
  /// memory, and nothing has changed.
  Status make_room(const ArenaRequest& request, Deadline deadline);
  /// Collective, between calls: they use the arena's again. Of a room that no graph was captured
  /// with.
  Status give_back_room(Deadline deadline);
  bool has_room() const { return room_.has_value(); }

  /// The barriers' signal pad.
  nvlink::SignalPad signal_pad() const;
  /// Of LocalMemory.
  sys::DevicePtr local_at(uint64_t offset_bytes) const { return local_ + offset_bytes; }
  /// Memory of this GPU that peers never see, for results that are dropped or cut; as much on all
  /// ranks. A call may use it from begin() to end().
  sys::DevicePtr spare() const { return spare_; }
  uint64_t spare_bytes() const { return spare_bytes_; }

 private:
  struct Memory {
    MemoryLayout layout;
    nvlink::Hold hold;  // of this rank's part
    sys::DevicePtr at = 0;
    nvlink::Window window;
  };
  const Memory& newest() const { return room_ ? *room_ : arena_; }
  Status allocate(Memory& memory);
  Result<nvlink::Window> share(const char* topic, const Memory& memory, Status own,
                               Deadline deadline);
  static const MemoryLayout::Placed* find(const Memory& memory, std::string_view name);

  group::Group& group_;
  sys::Cuda& cuda_;
  const int ordinal_;
  CallOrder* order_ = nullptr;
  bool has_whole_stores_ = true;
  sys::DevicePtr local_ = 0;  // counters that only this GPU uses
  sys::DevicePtr spare_ = 0;
  uint64_t spare_bytes_ = 0;
  Memory arena_;
  std::optional<Memory> room_;
};

}  // namespace braid::comm
