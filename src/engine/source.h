// The source's end of a connection to one target: it posts pieces, states what has landed, and ends
// every transfer, well or not, by its deadline.
//
//   dialling --handshake--> opening --ACCEPT--> up --lease, LEAVE or goodbye--> lost
//                 ^______________________________|  a socket that broke, within the lease
//
// A source that leaves takes all transfers back first, and stays until each has ended as a
// cancelled one does: a target of this host that is told nothing would go on writing into the
// memory of a read's caller, and bytes that lie in a socket would land after the end of their
// write.
//
// A transfer:
//
//   posting --all pieces completed--> LANDED is sent: stated --DONE--> done
//   posting --on one host--> PULL or FETCH is sent: stated --DONE or REFUSED--> done
//   (of the host's memory, to a GPU: stated at once, and PULL for each slot of the stage)
//   posting --cancel, deadline, region gone--> ending --nothing of it flies--> done
//   stated  --cancel, deadline--> CANCEL is sent: ending --CANCELLED, DONE or REFUSED--> done
//
// A rail that fails is closed here, then fenced at the target; only when the target has said FENCED
// are its pieces written again, so that no byte of an old write can land after its transfer's end.
//
// Threads: the worker's alone.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/dial.h"
#include "engine/ground.h"
#include "engine/rail.h"
#include "engine/region_set.h"
#include "engine/session.h"
#include "engine/stage.h"

namespace braid::engine {

class Source {
 public:
  Source(Ground& ground, const Address& target);
  ~Source();
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  void submit(std::unique_ptr<Transfer> transfer);
  void cancel(uint64_t transfer, const Status& why);
  /// Rails and pieces. True when anything moved.
  bool progress(int64_t now);
  /// The socket or the dial.
  bool converse(int64_t now);
  /// Deadlines, beats, the lease, rails to be tried again.
  void tick(int64_t now);
  /// Takes all transfers back, and says goodbye once the last one has ended, or after a second of
  /// waiting for that: is_lost() from then on. Nothing is submitted any more.
  void leave(const Status& why);

  const Address& target() const { return target_; }
  bool is_lost() const { return state_ == State::kLost; }
  bool is_leaving() const { return leave_by_ns_ != 0; }
  bool is_idle() const { return transfers_.empty(); }
  /// Something flies on a rail, which moves only while it is polled.
  bool must_poll() const;
  /// Something is to be done here before a socket says so, or a rail that is polled.
  bool needs_worker() const;
  /// An answer is due that comes sooner than a sleep would end.
  bool is_hot(int64_t now) const { return is_local_ && !transfers_.empty() && now < hot_until_ns_; }
  int fd() const { return session_.is_attached() ? session_.fd() : dial_ ? dial_->fd() : -1; }
  short events() const;
  std::string describe() const;

 private:
  enum class State : uint8_t { kDialling, kOpening, kUp, kLost };
  /// A slot of the stage and what its pull will say, once the copies behind `mark` are done.
  struct Gathered {
    uint64_t transfer = 0;
    uint64_t mark = 0;
    bool is_by_kernel = false;  // else by copy engines, which no other process's kernel waits for
    Pull pull;
  };

  void attach(int64_t now);
  void open();
  Status on_frame(const Frame& frame);
  Status on_accept(const Accept& accept);
  void on_rail_ready(const RailReady& ready);
  void on_fenced(const Fence& fenced);
  void on_gone(uint64_t region);
  /// The transfer that a verdict of the target is for; null when it waits for none.
  Transfer* find_stated(uint64_t transfer) const;
  void on_done(uint64_t transfer);
  void on_refused(const Refused& refused);
  void on_cancelled(uint64_t transfer);

  void start(Transfer& transfer);
  // To a target of this host: PULL or FETCH (source_local.cc).
  void hand_over(Transfer& transfer);
  void hand_over_stretches(Transfer& transfer, FrameType type);
  static Pull pull_of(const Transfer& transfer);
  void lend(const Region& region);
  void offer_board();
  void on_board_ready(const BoardAnswer& answer);
  void close_board();
  bool wants_stage(const Transfer& transfer);
  bool stage(int64_t now);
  Result<bool> gather(Transfer& transfer);
  Result<bool> gather_pages(Transfer& transfer, uint32_t slot, Gathered& out);
  Result<bool> gather_stretches(Transfer& transfer, uint32_t slot, Gathered& out);
  bool send_gathered();
  bool look_for_answers();
  Status check_way(const Transfer& transfer) const;
  bool post(Rail& rail, int64_t now);
  bool is_in_time(const Rail& rail, uint64_t piece_bytes, uint64_t bytes_left) const;
  uint64_t piece_bytes(const Rail& rail) const;
  bool poll(Rail& rail, int64_t now);
  void landed(const Rail::Flight& flight);
  void settle(Transfer& transfer);
  void call(size_t rail, int64_t now);
  bool end_if_freed(Transfer& t, int64_t now);
  void rail_failed(size_t rail, const Status& why, int64_t now);
  void take_back(Transfer& transfer, Status why, int64_t now);
  void finish(Transfer& transfer, Status status);  // by value: it may lie in the transfer
  void lose(const Status& why);
  void say_goodbye();
  void tell_work(int64_t now);
  void tick_transfers(int64_t now);
  void tick_rails(int64_t now);
  void tick_regions();
  std::string where(const Transfer& transfer) const;

  Ground& ground_;
  const Address target_;
  SessionId session_id_{};
  Session session_;
  std::unique_ptr<Dial> dial_;
  size_t dial_from_ = 0;  // behind the address that was good last
  State state_ = State::kDialling;
  bool is_local_ = false;
  std::string why_not_local_;
  uint64_t probe_value_ = 0;  // what a target of this host may read
  std::vector<Rail> rails_;
  std::vector<Rail::Flight> completed_;          // of one poll
  std::vector<std::vector<Rail::Flight>> held_;  // by rail, until it is fenced
  std::unordered_map<uint64_t, std::unique_ptr<Transfer>> transfers_;
  std::deque<uint64_t> queue_;         // with pieces to post
  std::unordered_set<uint64_t> lent_;  // regions of ours, to a target of this host
  std::shared_ptr<Board> board_;       // null: not offered yet, or refused
  bool is_board_asked_ = false;
  sys::DevicePtr board_address_ = 0;  // as our own GPU sees it
  std::deque<uint64_t> staging_;      // transfers that are not all gathered yet
  std::deque<Gathered> gathered_;     // slots that our kernel is filling, in order
  std::vector<uint64_t> listed_;      // transfers whose lists the target has, none of them answered
  int64_t hot_until_ns_ = 0;
  int64_t leave_by_ns_ = 0;  // 0: stays
  Status why_leave_;
  int64_t soonest_ns_ = INT64_MAX;  // deadline of those under way, or an earlier one that is over
  RegionSet gone_;                  // regions of the target
  std::vector<uint64_t> gone_unseen_;  // of those, to be answered
  bool is_work_told_ = false;
  int64_t worked_at_ns_ = 0;
};

}  // namespace braid::engine
