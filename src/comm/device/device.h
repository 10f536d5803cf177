// Device: what the collectives of one GPU need. Made once per comm, at its first call with device
// memory; every rank of the comm makes its own, and all ranks of the node reach each other's.
//
//   arena     device memory that all peers can write: barrier board, scratch, areas of packets,
//             lines, the relay and direct kernels
//   room      more of it for large messages, where the arena was made small (device_room.cc)
//   ring      pinned host memory that all GPUs map: the PCIe link (pcie/host_ring.h)
//   rdma      a second ring between host memories that a NIC joins, where there is one (rdma.h)
//   registered  users' own memory, where peers may write results in place
//   streams   some of our own beside the caller's (Side), joined to it by events
//   trouble   one page of host memory: a kernel's note on why it gave up, and our word that ends
//             every wait
//
// Work is only enqueued here. What fails later is found by the watch, a thread that reads the page
// and the group's fate: it tells the other ranks, and the next call answers with it.
//
// Calls on one comm are ordered among each other, whatever streams they are given: a call on
// another stream waits for the one before; within a graph too. A graph and what is not in it are
// the caller's to order.
//
// Threads: one at a time, as Comm. status() by any.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/device/call_watch.h"
#include "comm/device/host_balance.h"
#include "comm/device/memory_layout.h"
#include "comm/device/rdma.h"
#include "comm/device/ring_engine.h"
#include "comm/device/share_table.h"
#include "comm/state.h"
#include "sys/cuda/api.h"
#include "sys/cuda/loaded_kernels.h"
#include "transport/host/segments.h"
#include "transport/nvlink/barrier.h"
#include "transport/nvlink/short_blocks.h"
#include "transport/nvlink/team.h"
#include "transport/nvlink/window.h"
#include "transport/pcie/host_ring.h"

namespace braid::comm {

/// Where peers' bytes may land: `offset_bytes` into a window that every rank has.
struct Landing {
  const nvlink::Window* window = nullptr;  // null: not registered
  uint64_t offset_bytes = 0;
  uint64_t number = 0;  // of the registration, from 1: the same on all ranks
  sys::DevicePtr at(int rank) const { return window->at(rank) + offset_bytes; }
};

class Device {
 public:
  /// Collective; `ordinal` is this process's GPU for the comm; `nics` null: the real libfabric, if
  /// a NIC is to be used. Errors: unavailable (no driver, no kernels in this build, GPUs that
  /// cannot reach each other, ranks on several hosts, no NIC where one must be), exhausted, driver;
  /// every rank gets the same verdict.
  static Result<std::unique_ptr<Device>> create(Comm::State& state, sys::Cuda& cuda, int ordinal,
                                                const AreaSizes& areas,
                                                sys::FabricLibrary* nics = nullptr);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int rank() const { return team_.rank; }
  int size() const { return team_.size; }
  int ordinal() const { return ordinal_; }
  sys::Cuda& cuda() { return cuda_; }
  const nvlink::Team& team() const { return team_; }

  /// Waits for the comm's work, or ends it when the ranks do not part in peace, and closes the
  /// windows on the peers' memory; nothing may be enqueued afterwards. Our own memory stays until
  /// every rank has done this, and the destructor has run: peers hold it, by their mappings or as
  /// threads of this process (nvlink/lent_memory.h).
  void detach(bool in_peace);
  /// After detach(): a graph that was broken off is not through, as far as can be known. Its
  /// kernels may still look at everything here, so the object is given to leave().
  bool is_left() const { return is_left_; }
  /// Keeps it for as long as the process lives.
  static void leave(std::shared_ptr<Device> device);
  /// Ends every wait of this rank's work, without waiting for any of it: before what else may be on
  /// the streams, another library's kernels perhaps, has been ended, too. Between calls; twice is
  /// fine.
  void end_waits();

  /// Shares `memory` with all ranks for as long as the comm lives or until unregister_memory().
  /// Collective; sizes must be equal, and no byte may be registered already. Later calls whose
  /// buffers lie in it, at the same offset on all ranks, use it in place.
  Status register_memory(sys::DevicePtr memory, uint64_t bytes);
  /// Collective. Waits until no work of this comm uses it.
  Status unregister_memory(sys::DevicePtr memory);
  /// Of this rank alone, where all know that nobody calls with it any longer: it may be freed at
  /// once. Waits for nothing: the peers' mappings are kept for what is under way until memory is
  /// registered or unregistered the next time.
  Status forget_memory(sys::DevicePtr memory);
  /// The registration that holds the whole span, or none. invalid_argument when the memory was
  /// freed since, and its address given to somebody else. None, too, when memory of cuMemCreate is
  /// not mapped there any longer as it was: what one rank finds so and another does not is a
  /// disagreement of their calls.
  Result<Landing> find_landing(sys::DevicePtr memory, uint64_t bytes);
  /// What is registered now, and how much of it calls have found unmapped since.
  struct Registrations {
    uint64_t spans = 0, bytes = 0, remapped = 0;
  };
  Registrations registrations() const;
  /// This rank's scratch and the peers', of scratch_bytes() each.
  Landing scratch() const {
    return room_ ? Landing{&room_->window, 0} : Landing{&arena_, ArenaLayout::kScratchAt};
  }
  uint64_t scratch_bytes() const {
    return room_ ? room_->sizes.scratch_bytes : layout_.scratch_bytes;
  }
  /// Of this GPU's memory, all that the comm has of it, but for some KiB: the scratch and the areas
  /// of packets, lines, the relay and direct kernels, and the room.
  uint64_t memory_bytes() const { return layout_.bytes() + (room_ ? room_->window.bytes() : 0); }
  /// Collective, between calls: from now on they use a larger scratch and a larger area of direct
  /// kernels. Graphs that were captured before use what they used. Not ok on all ranks: one has no
  /// memory, and nothing has changed.
  Status make_room(const RoomSizes& sizes, Deadline deadline);
  /// Collective, between calls: they use the arena's again. Of room that no graph was captured with.
  Status give_back_room(Deadline deadline);
  bool has_room() const { return room_.has_value(); }
  /// Whether it was tuned, by who attached it (coll/device/entry.h).
  bool is_ready() const { return is_ready_; }
  void note_ready() { is_ready_ = true; }
  /// The packet area of `rank`, of packet_bytes() bytes, all zero before the first call.
  sys::DevicePtr packets_at(int rank) const { return arena_.at(rank) + layout_.packets_at(); }
  uint64_t packet_bytes() const { return layout_.areas.packet_bytes; }
  /// 32 zeroed bytes of this GPU's own memory for the packets' counters.
  sys::DevicePtr packet_state() const { return local_at(offsetof(LocalMemory, packets)); }
  /// The largest message, as all ranks' blocks, that may go by packets.
  uint64_t packet_limit() const { return packet_limit_; }
  /// The area for lines of `rank`, of line_bytes() bytes, all zero before the first call.
  sys::DevicePtr lines_at(int rank) const { return arena_.at(rank) + layout_.lines_at(); }
  uint64_t line_bytes() const { return layout_.areas.line_bytes; }
  /// 32 zeroed bytes of this GPU's own memory for the lines' counters.
  sys::DevicePtr line_state() const { return local_at(offsetof(LocalMemory, lines)); }
  /// The largest message, as all ranks' blocks, that may go by lines; 0 where they could tear.
  uint64_t line_limit() const { return line_limit_; }
  /// The multiprocessors of the comm's smallest GPU; of two ranks or more.
  int least_sms() const { return least_sms_; }
  /// Whether another rank is a thread of this process.
  bool has_peer_in_process() const { return arena_.has_peer_in_process(); }
  /// Whether ranks take turns on a GPU: then their waits last as long as a turn.
  bool shares_gpus() const { return shares_gpus_; }
  /// Blocks of each rank that find a place where all ranks are on one GPU, one on a multiprocessor.
  uint32_t shared_blocks() const { return static_cast<uint32_t>(std::max(least_sms_ / size(), 1)); }
  /// The direct kernels' area of `rank`, of direct_bytes() bytes; its flags are zero before the
  /// first call.
  sys::DevicePtr direct_at(int rank) const {
    return room_ ? room_->window.at(rank) + room_->sizes.scratch_bytes
                 : arena_.at(rank) + layout_.direct_at();
  }
  uint64_t direct_bytes() const {
    return room_ ? room_->sizes.direct_bytes : layout_.areas.direct_bytes;
  }
  /// 32 zeroed bytes of this GPU's own memory for their counters.
  sys::DevicePtr direct_state() const { return local_at(offsetof(LocalMemory, direct)); }
  /// The largest all-gather, as all ranks' blocks, that may go by them (direct_most_bytes()).
  uint64_t direct_limit() const { return room_ ? room_->sizes.direct_limit : direct_limit_; }

  /// The relay's flags of `rank`, of relay_bytes() bytes, all zero before the first call.
  sys::DevicePtr relay_at(int rank) const { return arena_.at(rank) + layout_.relay_at(); }
  uint64_t relay_bytes() const { return layout_.areas.relay_bytes; }
  /// 32 zeroed bytes of this GPU's own memory for its counters.
  sys::DevicePtr relay_state() const { return local_at(offsetof(LocalMemory, relay)); }

  // ---- one call ----

  /// Orders a call after the one before. The Status of earlier trouble, if any.
  Status begin(sys::Stream user);
  Status end(sys::Stream user);

  /// By a call that ends in a barrier of all ranks behind which none of them uses the scratch or
  /// the host ring any longer, once that is enqueued.
  void settle() { settles_ = !has_captures_; }
  /// Whether the call before this one did so: this one may write into peers' scratch at once. Never
  /// where a graph was captured, which may be replayed between any two calls.
  bool is_settled() const { return is_settled_; }

  /// What the comm's Observer is told of calls.
  CallWatch& call_watch() { return call_watch_; }
  /// Whether the call under way is captured in a graph: what fails in it has enqueued nothing that
  /// any rank could wait for.
  bool is_captured() const { return is_captured_; }
  /// Before a call whose begin() is yet to come.
  void expect_call() { is_captured_ = false; }
  /// Tells the Observer of calls that the GPU has done. Takes the device's context.
  void settle_calls();

  /// Streams of ours that a call may use between fork() and join().
  enum Side { kCopies = 0, kSums = 1, kHost = 2, kPushes = 3, kRdma = 4, kOwn = 5, kNumSides };
  sys::Stream side(Side side) const { return sides_[side]; }
  /// A point in a stream, good until 256 later ones were taken.
  Result<sys::Event> mark(sys::Stream stream);
  Status wait(sys::Stream stream, sys::Event point) { return cuda_.wait_event(stream, point); }
  /// Work enqueued on `to` from now on starts after what is on `from` now.
  Status after(sys::Stream to, sys::Stream from);
  /// All ranks meet on their streams. `signature` tells calls apart; a peer with another one is
  /// trouble.
  Status barrier(sys::Stream stream, int channel, uint64_t signature);
  /// The same with a signature for every peer: what this rank and that one have to do with each
  /// other.
  Status barrier_of_pairs(sys::Stream stream, int channel, const nvlink::PairMeeting& meeting);
  /// This rank meets each of the ranks in `with`, a bit per rank, and no other: both ranks of a
  /// pair meet each other equally often.
  Status meet_pairs(sys::Stream stream, uint32_t with);
  /// Short blocks to and from peers, after the barrier on `channel` that opened the call.
  Status exchange_short(sys::Stream stream, int channel, const nvlink::ShortBlocks& blocks);
  /// Half a barrier, on a channel that sees no whole ones: `teller` passes at once, the others when
  /// it has come as far as they. All ranks take the same steps in the same order.
  Status step(sys::Stream stream, int channel, int teller);
  Status send_over_host(sys::Stream stream, const pcie::Flows& flows);
  /// The same by fewer lanes, with half as many slots, two as one where they are small: for while
  /// sums run, which need the memory, too. Slots may have another size than in the call before,
  /// since a barrier, its own or that of the call before, says that the rings are empty.
  Status send_over_host_beside_sums(sys::Stream stream, const pcie::Flows& flows);
  /// The same through the NIC. Only when rdma() is on.
  Status send_over_rdma(sys::Stream stream, const pcie::Flows& flows);
  Rdma& rdma() { return *rdma_; }
  const Rdma& rdma() const { return *rdma_; }
  /// Part of a block (of the whole buffer, for all-reduce and broadcast) that tuning gave to the
  /// host link.
  HostShare host_share(plan::Op op) const { return shares_.tuned(op); }
  void set_host_share(plan::Op op, const HostShare& share) { shares_.set_tuned(op, share); }
  void set_host_share(plan::Op op, double of_all) { set_host_share(op, {0, 0, of_all, of_all}); }
  /// One share that nothing moves; none: as tuned and balanced again. The same on all ranks, at the
  /// same place among the calls.
  void force_host_share(plan::Op op, std::optional<double> share) { shares_.force(op, share); }
  /// What holds now, in parts of plan::kWhole.
  uint32_t host_parts(plan::Op op, uint64_t bytes) const { return shares_.parts(op, bytes); }

  // ---- stage 2 (host_balance.h) ----

  /// Collective, after tuning: from now on shares follow what calls measure.
  Status start_balance(Deadline deadline);
  /// Of a call that may use the host link, before it asks for host_parts(). Whether it is captured
  /// is known here.
  Status count_call(BalancedCall call);
  Status note(Moment moment, sys::Stream stream) {
    return balance_ ? balance_->mark(moment, stream) : Status();
  }
  /// Nothing when shares are not balanced. Threads: any.
  std::optional<HostBalance::Summary> balance_summary() const;
  /// Blocks that each of `num_flows` flows over the host link is moved by: ranks that say as many
  /// flows get as many lanes.
  int host_lanes(int num_flows) const { return ring_engine_.lanes_of(num_flows); }
  /// Blocks that a sum may use (0: as it likes).
  uint64_t sum_blocks() const { return sum_blocks_; }
  /// kSpareBytes of this GPU's memory that peers never see, for results that are dropped or cut: made
  /// at the first use, kept as long as the comm. A call may use it from begin() to end().
  Result<sys::DevicePtr> spare();
  static constexpr uint64_t kSpareBytes = 16 << 20;
  Status copy(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes);
  /// The same by a few blocks where that can be, for while the host ring runs: the driver's copy
  /// takes the memory's whole rate, and the ring stands still.
  Status copy_beside_ring(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                          uint64_t bytes);
  /// Copies into peers' memory, 16 at most, in no order among each other.
  Status push(sys::Stream stream, std::span<const sys::DeviceCopy> copies);
  /// GB/s that pushes are held to (BRAID_LINK_CAP); 0: as fast as they go.
  double link_cap_gbps() const { return link_cap_gbps_; }
  /// An entry of an embedded fatbin, which is loaded at its first use (sys/cuda/loaded_kernels.h):
  /// coll/device/preload.h asks for all. It may be launched with `shared_bytes` of dynamic shared
  /// memory, the same at every use. unavailable when this build has no kernels.
  Result<sys::Kernel> kernel(std::span<const std::byte> fatbin, const char* name,
                             uint32_t shared_bytes = 0);
  /// What one block may have, static and dynamic.
  uint32_t most_shared_bytes() const { return most_shared_bytes_; }

  /// ok, or the first trouble of this comm's GPU work.
  Status status() const;

 private:
  // Among more than two a lane is one block, and hears of a slot from several readers: with half as
  // much on its way it carried 7 % of an all-gather of 256 MiB, then no more (4 H200).
  static constexpr uint64_t kSlotBytes = 128 << 10;
  static constexpr uint64_t size_of_slots(int num_ranks) {
    return num_ranks > 2 ? kSlotBytes : kSlotBytes / 2;
  }

  Status check_apart(sys::DevicePtr memory, uint64_t bytes) const;
  sys::DevicePtr local_at(uint64_t offset_bytes) const { return local_memory_ + offset_bytes; }

  struct Registered {
    uint64_t bytes = 0;
    uint64_t buffer_id = 0;
    nvlink::Window window;
    uint64_t number = 0;
    bool was_remapped = false;
  };
  /// What the GPU and the host tell each other, in one pinned page.
  struct Page {
    nvlink::Trouble trouble;
    uint32_t must_abort;
  };

  Device(Comm::State& state, sys::Cuda& cuda, int ordinal)
      : state_(state),
        cuda_(cuda),
        ordinal_(ordinal),
        loaded_(sys::LoadedKernels::of(cuda, ordinal)) {}
  Status prepare();  // what needs no peer
  Status check_slots();
  Status make_page();
  Status make_arena();
  Status make_ring(Deadline deadline);
  Status make_rdma(sys::FabricLibrary* nics, Deadline deadline);
  void count_sent(CallWatch::Link link, const pcie::Flows& flows);
  Status run_ring(sys::Stream stream, const pcie::HostRing& ring, const pcie::Flows& flows);
  Status settle_lines(Deadline deadline);
  bool is_current(Registered& entry, sys::DevicePtr memory, uint64_t bytes);
  Status finish_last_call();
  Status close_forgotten();
  /// The last call of a capture. Captures may take turns: as many at a time as captures_ has room
  /// for, the calls of more lose their order.
  struct Captured {
    uint64_t id = 0;  // 0: none yet
    sys::Event last_call{};
  };
  Status follow_captured(sys::Stream user);
  Status note_captured(sys::Stream user);
  Status load_ring(const sys::DeviceFacts& facts);
  Status read_link_cap();
  Status push_held(sys::Stream stream, std::span<const sys::DeviceCopy> copies);
  Status hold(sys::Stream stream, uint64_t bytes);
  Status meet(sys::Stream stream, int channel, const nvlink::Meeting& meeting);
  void watch();
  void stop_watch();
  bool are_graphs_through(bool in_peace);
  Status look_for_trouble();
  Status rdma_trouble();

  Comm::State& state_;
  sys::Cuda& cuda_;
  const int ordinal_;
  int least_sms_ = 0;
  nvlink::Team team_{};
  nvlink::Board board_{};
  pcie::HostRing ring_{};
  ArenaLayout layout_;
  uint64_t packet_limit_ = 0, line_limit_ = 0, direct_limit_ = 0;
  sys::DevicePtr arena_memory_ = 0;
  nvlink::Hold arena_hold_;
  sys::DevicePtr local_memory_ = 0;  // counters that only this GPU uses
  sys::DevicePtr spare_ = 0;
  nvlink::Window arena_;
  struct Room {
    RoomSizes sizes;
    nvlink::Hold hold;  // of this rank's part
    nvlink::Window window;
  };
  std::optional<Room> room_;
  std::optional<transport::Segments> segments_;
  std::vector<void*> pinned_;  // host memory to unregister
  Page* page_ = nullptr;
  sys::DevicePtr page_on_device_ = 0;
  std::map<sys::DevicePtr, Registered> registered_;
  std::vector<Registered> forgotten_;  // whose mappings work under way may still use
  std::shared_ptr<sys::LoadedKernels> loaded_;
  // Of loaded_, those asked for: every call looks here, without the lock that other comms share.
  std::map<std::string, sys::Kernel, std::less<>> kernels_;
  sys::Kernel barrier_kernel_{}, barrier_of_pairs_kernel_{}, pairs_kernel_{}, ring_kernel_{};
  sys::Kernel short_kernel_{}, bulk_ring_kernel_{}, local_copy_kernel_{};
  std::array<sys::Stream, kNumSides> sides_{};
  std::array<sys::Event, 256> events_{};
  size_t next_event_ = 0;
  sys::Event last_call_{};
  std::array<Captured, 16> captures_{};  // the same, of the captures that had calls last
  size_t next_capture_ = 0;
  bool has_last_call_ = false;
  bool is_captured_ = false;  // the call under way
  bool has_captures_ = false;
  bool is_left_ = false;
  bool is_ready_ = false;
  bool settles_ = false, is_settled_ = false;  // the call under way; the one before
  bool shares_gpus_ = false;
  CallWatch call_watch_;
  ShareTable shares_;
  std::unique_ptr<HostBalance> balance_;
  std::unique_ptr<Rdma> rdma_;
  RingEngine ring_engine_;
  uint64_t sum_blocks_ = 0;
  uint32_t most_shared_bytes_ = 0;
  double link_cap_gbps_ = 0;
  sys::Kernel hold_kernel_{};

  mutable std::mutex trouble_mutex_;
  Status trouble_;
  uint64_t num_registrations_ = 0;           // that succeeded, which is on all ranks or none
  std::atomic<int64_t> rdma_failed_ns_ = 0;  // 0: not yet
  std::atomic<bool> must_stop_{false};
  std::thread watch_;  // last: it uses all of the above
};

}  // namespace braid::comm
