// Exchange: messages between this rank and others, any number at a time, each between two ranks
// alone. It runs in one thread, which holds the comm's lock from its making to its end.
//
//   sender                                      receiver
//   post: kOffer (dtype, count)  ----------->   <-----------  kWant (dtype, count) :post
//   both ends compare the two; where they differ the message is over on both, nothing was sent
//   kMessage, cell by cell       ----------->   into its place
//                                <-----------   kArrived, when all of them are there
//
// Messages from one rank to another are numbered from 0 for the life of the comm, and one of them
// is under way at a time: number k + 1 is offered when k has arrived. So what a rank must remember
// of peers that are ahead is one offer and one want of each (comm/message_book.h).
//
// Pieces carry the epoch of the collective that comes next. A collective leaves those of later
// epochs in their lanes and drops what is older; so does the keeper between calls.
//
// Why a wrong order is found, and a right one never taken for it: a message ends on both ranks only
// when both have called it. A rank that is in the next collective although it has not announced its
// end of our message will never come to it before we enter that collective, and vice versa. So the
// first piece of a collective from a peer that owes an announcement is an error, at once, and so is,
// in a collective, an announcement that is not answered (Call::take_message_piece()).
//
// Why it cannot hang: every pass ends in progress or in a bounded wait, after which the group and
// the deadline of every message that is under way are looked at.
//
// Links that fail: as in a collective the outbox puts what a dead link held on the others. Silence
// towards a peer is judged once it has announced its ends: until then it may be elsewhere, and what
// a silent link may have lost of our announcements is said again on another one. Cells wait in their
// lanes for the offer: it goes ahead of them on every link that has some, since one that is lost
// with its link would hold up all others, which then would not tell that the link is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/status.h"
#include "coll/host/outbox.h"
#include "coll/host/stall_watch.h"
#include "coll/host/waiter.h"
#include "coll/messages/messages.h"
#include "comm/state.h"

namespace braid::coll {

/// What one rank can know alone.
Status check_message(const comm::Comm& comm, const Message& message);

class Exchange {
 public:
  /// status() says whether the comm can be used; nothing else may be called when it cannot.
  explicit Exchange(comm::Comm& comm);
  const Status& status() const { return guard_.status(); }

  /// Adds a message that check_message() found right. Answers its id: they count from 0.
  int post(const Message& message);
  /// Whether step() has something to do or to tell: post() alone may find a message wrong.
  bool has_open() const { return num_open_ > 0 || !ended_.empty(); }

  /// The end of a message that only this rank knows it cannot post, though its arguments are right: the
  /// peer would wait for it until the deadline. So the comm ends, with all messages, and every rank
  /// hears why at once. Answers the cause.
  Status give_up(const Message& message, const Status& why);

  struct Ended {
    int id = 0;
    Status status;
  };
  /// Moves until a message or more is over, or poke() was called. A Status that is not ok ends all
  /// messages and the comm.
  Result<std::vector<Ended>> step();
  /// Makes the step() that runs, or the next one, return soon. Any thread.
  void poke() { is_poked_.store(true, std::memory_order_relaxed); }

 private:
  struct Open {
    int id = 0;
    Message message;
    bool is_agreed = false;
    int announced_link = -1;
    std::vector<bool> seen;  // kRecv: cells
    uint64_t cells_missing = 0;
    int64_t moved_ns = 0;
  };
  /// Of one peer, in order; the first one of each is under way.
  struct Peer {
    std::deque<Open> sends, receives;
    uint64_t acked = 0;  // pieces, on all links, when last looked at
  };

  // exchange.cc: what this rank does by itself.
  void move();
  /// Whether step() has something to tell.
  bool has_news() const;
  void announce(int peer, Open& open);
  void put_announcement(int link, int peer, const Open& open);
  void agree(int peer, Open& open, const comm::Announcement& theirs);
  void queue_cells(int peer, Open& open);
  void end(int peer, Message::Way way, Status status);
  std::deque<Open>& queue(int peer, Message::Way way) {
    Peer& p = peers_[static_cast<size_t>(peer)];
    return way == Message::Way::kSend ? p.sends : p.receives;
  }
  comm::PeerMessages& book(int peer) { return state_.messages[static_cast<size_t>(peer)]; }
  uint64_t number(int peer, Message::Way way) {
    return way == Message::Way::kSend ? book(peer).num_sent : book(peer).num_received;
  }

  // exchange_receive.cc: what arrives.
  bool receive();
  bool receive_from(int link, int peer);
  /// False: leave the piece in its lane.
  bool handle(const transport::Arrival& arrival, int link, int peer);
  bool on_announcement(const Tag& tag, std::span<const std::byte> payload, int peer);
  bool on_cell(const Tag& tag, std::span<const std::byte> payload, int link, int peer);
  bool on_arrived(const Tag& tag, int peer);
  void on_collective(const Tag& tag, std::span<const std::byte> payload, int peer);

  // exchange_watch.cc: what ends messages that do not get on.
  void watch();
  void look_for_the_gone();
  transport::PeerSet left_with_open() const;
  const Open* first_open(int peer) const;
  bool owes_nothing(int peer) const;
  void look_at_links(int64_t now);
  void probe(int link, int peer);
  void look_at_farewell(int64_t now);
  void look_at(int peer, Open& open, int64_t now);
  void stop(Status status);

  comm::CallGuard guard_;
  comm::Comm::State& state_;
  const uint64_t epoch_;
  const uint32_t cell_bytes_;
  std::vector<Peer> peers_;
  std::optional<Outbox> outbox_;
  std::optional<StallWatch> stall_watch_;
  std::optional<Waiter> waiter_;
  int next_id_ = 0;
  int num_open_ = 0;
  int64_t last_end_ns_ = 0;
  std::vector<Ended> ended_;
  std::atomic<bool> is_poked_{false};
  Status status_;  // not ok: the exchange and the comm are over
};

}  // namespace braid::coll
