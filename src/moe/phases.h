// Phases: the protocol of all calls of a buffer, without any waiting: whoever calls it asks again
// until the answer is yes, on a CPU in a loop with a deadline, in the simulator in a random order.
//
// A phase is one push of every rank to every rank, empty ones too. Phases are numbered from 1 for
// the life of the buffer, alike on all ranks, and phase p uses half p % 2 of every window:
//
//   source                                            target
//   may_send(p): every peer has acked p - 2
//   rows into its rooms of half p % 2 of the target
//   signal: the call's words, then flag = p  ------>  has_arrived(p): flags of all sources are p
//                                                     all their words agree with ours, or the call
//                                                     is an error on every rank, nothing was read
//                                                     reads the rows
//                                            <------  release(p): ack = p to every peer
//
// Early: a row is read only when its source's flag says p, which it stores after the rows (release,
// acquire). Torn or overwritten: half p % 2 is written again in phase p + 2, and not before every
// reader has acked p. Lost: a number is never taken back or used twice, so no reset can race with
// a later call, and which phase a flag belongs to can be told. Stuck: to send p + 2 a rank waits
// for acks of p; to ack p a rank waits for flags of p. So if every rank receives p before it sends
// p + 2 (may_begin() refuses anything else), the oldest phase that anybody waits for always gets on.
//
// A rank that is late: its flag is missing, the call ends at its deadline, and the phase stays
// unsettled here: it is acked, by settle(), once the flag has come. Until then no peer can send
// p + 2 to this rank, so that what the late rank still writes lands on no other call's rows.
//
// A rank that cannot send p in time takes the number all the same and sends failure flags, to a peer
// whose ack is late once that has come; so all ranks count alike, and the others learn it at once.
// Flags also have the number of their call. Where ranks meet in different calls (one ended early, or
// they were called in different orders) all of them get an error and go on behind the latest.
//
// A rank that is given up (mask): it is not sent to nor waited for. It may write on, into the
// regions of halves that are its own; where rows of several sources share an area, callers give
// each source a part of its own (`can_shrink`).
//
// A rank that the caller masks may be alive and wait: it gets flags all the same, which say that it is
// masked and that nothing was pushed, as failure flags are sent. So its call ends as an error, it acks,
// and numbers are in step once it is not masked any more.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "moe/flag_words.h"
#include "moe/window.h"

namespace braid::moe {

const char* call_name(CallKind kind);

class Phases {
 public:
  Phases(Windows& windows, WindowLayout layout, int rank);

  const WindowLayout& layout() const { return layout_; }
  int rank() const { return rank_; }
  int size() const { return layout_.num_ranks; }

  /// Of the last phase that was begun here.
  uint64_t last() const { return last_; }
  /// False: phase last() - 1 is not received here, so that the next one would be the third use of
  /// a half that is alive.
  bool may_begin() const { return last_ + 1 <= kHalves || is_received(last_ + 1 - kHalves); }
  /// Takes the next number.
  uint64_t begin() { return ++last_; }
  /// Every peer has given back the half that `phase` uses.
  bool may_send(uint64_t phase) const;
  /// Room in the half of the phase: at `offset` of this rank's region, or of the whole half.
  std::byte* room_in_region(uint64_t phase, int peer, uint64_t offset, uint64_t bytes);
  std::byte* room_in_half(uint64_t phase, int peer, uint64_t offset, uint64_t bytes);
  /// The same bytes in several ranks' windows, each at a place_in_region().
  Windows::Place place_in_region(uint64_t phase, int peer, uint64_t offset) const {
    return {peer, layout_.region(phase % kHalves, rank_) + offset};
  }
  void put(std::span<const Windows::Place> places, std::span<const std::byte> bytes) {
    windows_.put(places, bytes);
  }
  /// `remark` is what the source says besides: no rank compares it.
  void signal(uint64_t phase, int peer, const FlagWords& words, uint32_t remark = 0);
  /// In place of all signals of the phase.
  void signal_failure(uint64_t phase, uint32_t call);
  /// In place of signals to ranks that the caller has masked.
  void signal_masked(uint64_t phase, uint32_t call);
  /// Whether the source of these words has masked their reader.
  static bool is_of_mask(const FlagWords& words);

  bool has_arrived(uint64_t phase, int source) const;
  bool has_arrived(uint64_t phase) const;
  /// Once it has arrived.
  FlagWords words_of(uint64_t phase, int source) const;
  uint32_t remark_of(uint64_t phase, int source) const;
  /// What `source` pushed into its region here; into its region of its own window, null where that
  /// cannot be read; the whole half.
  const std::byte* region_of(uint64_t phase, int source) const;
  const std::byte* region_at(uint64_t phase, int source) const;
  const std::byte* half_of(uint64_t phase) const;
  /// The rows of the phase are not needed any more. With `all_arrived` false it is settled later.
  void release(uint64_t phase, bool all_arrived);
  /// Acks what was released and has arrived meanwhile; sends failures that peers can take now.
  void settle();
  bool is_received(uint64_t phase) const { return received_[phase % kHalves] >= phase; }

  // Whom this rank has given up.
  uint64_t mask() const { return mask_; }
  bool is_masked(int peer) const { return (mask_ >> peer & 1) != 0; }
  void set_mask(uint64_t mask) { mask_ = mask; }
  /// Gives `peer` up and tells the others; what they tell is taken over by hear().
  void give_up(int peer);
  void forget_given_up();
  /// True when somebody told something new. `told_off` is who has given this rank up, or -1.
  bool hear();
  int told_off() const { return told_off_; }

  /// Ranks whose flag (or ack) of the phase is missing.
  std::vector<int> missing_flags(uint64_t phase) const;
  std::vector<int> missing_acks(uint64_t phase) const;

 private:
  /// Flags of every second phase from `first` to `phase`, of which the last one stands for all.
  struct Owed {
    uint64_t first, phase;
    int peer;
    FlagWords words;
  };
  void owe(uint64_t phase, int peer, const FlagWords& words);
  void send(uint64_t phase, int peer, const FlagWords& words, uint32_t remark);
  bool is_given_up(int peer) const { return (given_up_ >> peer & 1) != 0; }
  bool has_acked(uint64_t phase, int peer) const;
  void ack(uint64_t phase);
  void tell();
  bool take_over(uint64_t lost);

  Windows& windows_;
  const WindowLayout layout_;
  const int rank_;
  uint64_t last_ = 0;
  std::array<uint64_t, kHalves> received_{};   // by half: last phase whose receive half is over
  std::array<uint64_t, kHalves> unsettled_{};  // released before all flags had come; 0: none
  std::vector<Owed> owed_;
  uint64_t mask_ = 0;
  uint64_t given_up_ = 0;        // what the others are told
  std::vector<uint64_t> heard_;  // by peer: what it told last
  int told_off_ = -1;
};

}  // namespace braid::moe
