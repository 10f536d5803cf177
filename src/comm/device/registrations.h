// Registrations: users' own memory that peers may write results into in place, and whether it is
// still what it was.
//
// Threads: as comm::Device.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/device/call_order.h"
#include "comm/device/symmetric_address.h"
#include "comm/state.h"
#include "sys/cuda/api.h"

namespace braid::comm {

class Registrations {
 public:
  Registrations(Comm::State& state, sys::Cuda& cuda, int ordinal, CallOrder& order);

  /// Shares `memory` with all ranks for as long as the comm lives or until remove(). Collective;
  /// sizes must be equal, and no byte may be registered already. Later calls whose buffers lie in
  /// it, at the same offset on all ranks, use it in place.
  Status add(sys::DevicePtr memory, uint64_t bytes);
  /// Collective. Waits until no work of this comm uses it: where calls were captured since it was
  /// registered, for all that is on the GPU, since nothing else tells when a replay ends.
  /// invalid_argument, and nothing has changed, where that cannot be waited for: a stream is being
  /// captured.
  Status remove(sys::DevicePtr memory);
  /// Of this rank alone, where all know that nobody calls with it any longer, nor replays a graph
  /// that does: it may be freed at once. Waits for nothing: the peers' mappings are kept for what is
  /// under way until memory is registered or unregistered the next time.
  Status forget(sys::DevicePtr memory);
  /// The registration that holds the whole span, or none. invalid_argument when the memory was
  /// freed since, and its address given to somebody else. None, too, when memory of cuMemCreate is
  /// not mapped there any longer as it was: what one rank finds so and another does not is a
  /// disagreement of their calls.
  Result<SymmetricAddress> find(sys::DevicePtr memory, uint64_t bytes);
  /// What is registered now, and how much of it calls have found unmapped since.
  struct Summary {
    uint64_t spans = 0, bytes = 0, remapped = 0;
  };
  Summary summary() const;
  /// Ends the windows on the peers' memory, and waits for nothing.
  void close();

 private:
  struct Entry {
    uint64_t bytes = 0;
    uint64_t buffer_id = 0;
    nvlink::Window window;
    uint64_t number = 0;
    uint64_t captured_before = 0;  // CallOrder::num_captured()
    bool was_remapped = false;
  };
  Status check_apart(sys::DevicePtr memory, uint64_t bytes) const;
  bool is_current(Entry& entry, sys::DevicePtr memory, uint64_t bytes);
  /// Whether a captured call was after its registration.
  bool may_be_in_graph(const Entry& entry) const {
    return order_.has_captures() && order_.num_captured() > entry.captured_before;
  }
  Status finish_graphs();
  Status close_forgotten();
  Deadline deadline() const { return Deadline::after_ns(timeout_ns_); }

  Comm::State& state_;
  sys::Cuda& cuda_;
  const int ordinal_;
  const int64_t timeout_ns_;
  CallOrder& order_;
  std::map<sys::DevicePtr, Entry> entries_;
  std::vector<Entry> forgotten_;  // whose mappings work under way may still use
  uint64_t num_added_ = 0;        // which is on all ranks or none
};

}  // namespace braid::comm
