// Mirrors: host rings (pcie/host_ring.h) between GPUs that share no host memory but have NICs. The
// kernels are the same: every rank's segment is there, its own for real, each peer's as a mirror, a
// copy in this rank's own pinned memory. What moves slots and counters between the two is this
// object, driven by one thread of the host. It is the pinned bounce: no NIC sees GPU memory.
//
//   sender's GPU   sender's host        reader's host        reader's GPU
//   slot, full = s + 1
//                  sees full, writes
//                  the slot        -->  into the mirror's slot,
//                                       immediate {full, s}
//                  writes record s -->  on the board: full = s + 1 in the mirror
//                                                            copies it out, free = s + 1
//                  free[reader]    <--  record of s + 1,
//                  = s + 1              immediate {free, s + 1}
//   may write slot s + num_slots
//
// Who writes what. In a rank's own segment: its GPU the slots and `full`, its host `free` of every
// reader. In a mirror: the peer's NIC the slots, our host `full`, our GPU our own `free`. Nothing
// else is a target of a NIC: the counters lie outside the registered part.
//
// Assumed of the fabric, as in lane.h: a write that lands is whole when its immediate is seen, and
// lands once. Order is not assumed: a slot that comes early is marked and shown (`full`) when all
// before it are here; frees are cumulative, and one that comes late is less than what is known.
//
// Strangers: a slot is shown when its immediate was seen AND its record stands on the board, which
// was written after it and which nobody else has the key of. Where bytes of one connection land in
// their order, a slot whose record is there is whole, whoever sent the immediate; where they do not
// (efa), strangers cannot send any (real_info.cc). What no board bears out is dropped and counted.
//
// Why it cannot tear: slot s + num_slots is written by the sender's GPU, and then by its host into
// mirrors, only after every reader freed slot s, which it can only after its one write has landed.
// Nothing is written a second time, so nothing can land late over something newer; but for records at
// the end, behind which nothing newer comes.
//
// Failure. Kernels count slots, so what one lost cannot go another way: the first write that fails,
// or a number that cannot be, ends it. status() says so, progress() moves nothing any more, and who
// waits in a kernel is ended by the owner. A write that vanished with success is found by the
// deadline of the kernel that waits for it. Why it cannot hang: nothing here waits, but for greet()
// with its deadline, and the end, which lingers for a tenth of a second.
//
// Threads: one at a time; status() and traffic() by any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "group/group.h"
#include "sys/fabric/api.h"
#include "sys/host/pages.h"
#include "transport/pcie/host_ring.h"
#include "transport/rdma/mirror_wire.h"
#include "transport/rdma/outbox.h"

namespace braid::transport::rdma {

struct MirrorOptions {
  std::string provider;  // of libfabric
  std::string address;   // local, whose interface is used
  uint32_t slot_bytes = 0;
  uint32_t num_slots = 0;
  int num_lanes = 1;                // of a flow: that are looked at
  int64_t greeting_ns = INT64_MAX;  // patience with peers that this NIC does not reach
};

class Mirrors {
 public:
  static Result<std::unique_ptr<Mirrors>> open(sys::FabricLibrary& library,
                                               const MirrorOptions& options, int self, int size);
  ~Mirrors();
  Mirrors(const Mirrors&) = delete;
  Mirrors& operator=(const Mirrors&) = delete;

  // Connecting: tell everyone endpoint_name() and remote_endpoint_for(them), then meet() everyone.
  const std::string& endpoint_name() const { return endpoint_->name(); }
  struct RemoteEndpoint {
    RemoteRing mirror;   // which the other writes, the board behind it
    uint64_t nonce = 0;  // with which the other seals its records
  };
  RemoteEndpoint remote_endpoint_for(int peer) const;
  Status meet(int peer, const std::string& endpoint_name, const RemoteEndpoint& remote);
  /// Progresses until every peer was heard; timeout names who was silent.
  Status greet(Deadline deadline);

  /// The segment of `rank` as this process has it, of segment_bytes() bytes, zeros at first: what
  /// the kernels are given. Page-aligned.
  std::byte* segment(int rank) const { return pages_[static_cast<size_t>(rank)].data(); }
  uint64_t segment_bytes() const { return segment_bytes_; }
  const MirrorOptions& options() const { return options_; }

  /// Moves what can move now. True when anything did.
  bool progress();
  /// Whether what our GPU has written was handed to the NIC.
  bool has_sent_all() const;
  /// ok, or what ended it.
  Status status() const;

  struct Traffic {
    uint64_t sent_slots = 0, received_slots = 0;
  };
  Traffic traffic() const { return {num_sent_, num_received_}; }
  /// Immediates that no member can have sent.
  uint64_t num_unfounded() const { return num_unfounded_; }

 private:
  /// One of our rings towards one reader.
  struct Sent {
    uint64_t posted = 0;    // slots
    uint64_t recorded = 0;  // of those, on its board
    uint64_t freed = 0;     // by this reader
  };
  /// One of a peer's rings that we read.
  struct Received {
    uint64_t full = 0;             // all before it are here
    uint64_t told = 0;             // of our frees
    uint64_t num_told = 0;         // how often
    std::vector<bool> is_claimed;  // by an immediate; [number % num_slots], from `full` on
  };
  struct Peer {
    const sys::FabricRegion* region = nullptr;  // our mirror of its segment, which it writes
    uint64_t fabric_peer = 0;
    uint64_t nonce = 0;                      // with which it seals
    RemoteEndpoint remote;                   // to its mirror of ours
    Sent sent[2][pcie::kMostLanes];          // [everyone][lane]
    Received received[2][pcie::kMostLanes];  // the same
    bool is_greeting_due = true;
    bool was_heard = false;
  };
  struct Op : sys::FabricOp {
    int peer = 0;
  };

  Mirrors(MirrorOptions options, int self, int size);
  Status allocate();
  uint64_t slots_at() const { return sizeof(pcie::RingHead); }
  uint64_t slots_bytes() const { return segment_bytes_ - slots_at(); }
  /// Of what `peer` wrote to us, and of what we write to it.
  std::byte* board_in(int peer) const { return segment(peer) + segment_bytes_; }
  std::byte* board_out(int peer) const {
    return segment(self_) + segment_bytes_ + static_cast<uint64_t>(peer) * board_.bytes();
  }
  std::optional<uint64_t> read_record(int peer, uint64_t offset) const;
  int key_of(bool everyone, int reader) const { return everyone ? size_ : reader; }
  pcie::RingCounters& counters(int owner, int key, int lane) const;
  /// Of a slot, from the first slot of a segment.
  uint64_t slot_offset(int key, int lane, uint64_t number) const;
  Peer& at_peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& at_peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }

  // Posting: each answers whether anything was posted.
  bool post(int rank, sys::FabricTransfer write);
  bool post_record(int rank, uint64_t offset, uint64_t number, const SlotNews* news);
  bool write_record(int rank, uint64_t offset, const SlotNews* news, bool wants_delivery);
  bool post_slot(int rank, bool everyone, int lane, uint64_t number);
  bool post_slots(int rank, bool everyone, int lane);
  bool post_free(int rank, bool everyone, int lane);
  bool post_due(int rank);

  bool drain();
  void on_event(const sys::FabricEvent& event);
  void on_news(const SlotNews& news);
  void on_full(const SlotNews& news);
  void on_free(const SlotNews& news);
  bool show_slots(int rank, bool everyone, int lane);
  bool show_all_slots();
  void note_unfounded(const SlotNews& news);
  void fail(int rank, std::string_view why);
  Op* take_op();
  void linger(Deadline deadline);
  void confirm_records(Deadline deadline);
  std::string silent_peers() const;

  const MirrorOptions options_;
  const int self_;
  const int size_;
  const uint64_t segment_bytes_;
  const BoardShape board_;
  // Memory outlives the endpoint, which may write until it is closed. Behind our segment lie the
  // sources of our boards, one for each peer; behind a mirror the board that its peer writes.
  std::vector<sys::Pages> pages_;  // [rank]
  std::vector<Peer> peers_;
  std::deque<Op> ops_;
  std::vector<Op*> free_ops_;
  uint64_t num_flying_ = 0;
  std::unique_ptr<sys::FabricDomain> domain_;
  std::unique_ptr<sys::FabricEndpoint> endpoint_;
  const sys::FabricRegion* source_region_ = nullptr;
  std::array<sys::FabricEvent, 32> events_;
  std::atomic<uint64_t> num_sent_{0}, num_received_{0}, num_unfounded_{0};
  std::atomic<bool> has_failed_{false};
  mutable std::mutex status_mutex_;
  Status status_;
};

/// Collective: opens one end per rank and greets everyone; all ranks get the same verdict. A
/// library that could not be opened is told to the others. Errors: unavailable (no libfabric,
/// provider or address), invalid_argument (shapes differ), timeout.
Result<std::unique_ptr<Mirrors>> connect_mirrors(const Result<sys::FabricLibrary*>& library,
                                                 group::Group& group, const MirrorOptions& options,
                                                 Deadline deadline);

}  // namespace braid::transport::rdma
