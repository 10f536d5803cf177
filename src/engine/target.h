// The target's end of a connection: what one source may do here.
//
// It answers the source's calls for rails with endpoints of its own, counts and delivers what has
// landed, copies what the source asks to be pulled, and ends, on demand or when the source is lost,
// everything that could still land: by closing endpoints, and by not copying any more.
//
// Threads: the worker's alone.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "engine/copier.h"
#include "engine/ground.h"
#include "engine/order_queue.h"
#include "engine/session.h"

namespace braid::engine {

class Target {
 public:
  Target(Ground& ground, const Incarnation& source);
  /// Ends all that it has begun, also when a new session of its source replaces it.
  ~Target() { lose("is replaced"); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  /// A socket whose handshake is done.
  void attach(ControlSocket socket, uint64_t peer_received);
  /// Endpoints and copies. True when anything moved.
  bool progress();
  bool converse();
  void tick(int64_t now);
  /// Tells the source that a region is gone, behind ACCEPT if it has not come to that; is_clear_of()
  /// says when nothing of it can land.
  void tell_gone(uint64_t region);
  bool is_clear_of(uint64_t region) const { return !gone_.contains(region); }
  /// Nothing that this source has written by rails lands from now on. It will call for new ones.
  void fence_rails();
  void leave();

  bool is_lost() const { return is_lost_; }
  bool has_rails() const { return !rails_.empty(); }
  /// The source writes by rails that move only while they are polled, or there is something to copy.
  bool must_poll() const {
    return (is_work_under_way_ && !rails_.empty()) || !queue_.is_empty() || !endings_.empty();
  }
  const Incarnation& source() const { return source_; }
  uint64_t received() const { return session_.received(); }
  int fd() const { return session_.fd(); }
  short events() const;
  std::string describe() const;

 private:
  struct Rail {
    RailPair pair;
    std::unique_ptr<sys::FabricEndpoint> endpoint;
  };
  /// A transfer that was taken back while a GPU was copying some of it.
  struct Ending {
    uint64_t transfer = 0;
    uint64_t mark = 0;
    Status why;  // not ok: it was refused
  };

  /// Not ok: the source does not keep to the protocol.
  Status on_frame(const Frame& frame);
  Status on_open(const Open& open);
  std::string why_not_local(const Open& open) const;
  std::vector<RailPair> rails_with(const Open& open) const;
  void on_rail(const RailCall& call);
  Result<RailReady> answer(const RailCall& call);
  void on_fence(Fence fence);
  void on_board(const BoardOffer& offer);
  void on_lend(const Loan& loan);
  void on_landed(Landed landed);
  Status on_pull(FrameType type, Pull pull);
  void on_cancel(uint64_t transfer);
  void take_order(bool is_fetch, Pull pull);
  bool serve();
  bool finish_first();
  bool end_cancelled();
  void fail(uint64_t transfer, const Status& why);
  bool deliver(uint64_t transfer, const Delivery& delivery);
  void refuse(uint64_t transfer, const Status& why);
  /// DONE for those of this round.
  void tell_done();
  void settle_copies();
  void lose(const char* why);

  Ground& ground_;
  const Incarnation source_;
  Session session_;
  std::string name_ = "?";
  int process_ = 0;
  int64_t lease_ns_;
  bool is_open_ = false;
  bool is_local_ = false;
  bool is_lost_ = false;
  bool is_work_under_way_ = false;
  std::vector<Rail> rails_;
  Copier copier_;
  OrderQueue queue_;
  std::deque<Ending> endings_;
  std::set<uint64_t> refused_;  // transfers whose further frames are dropped
  std::vector<uint64_t> done_;  // of this round, told in one frame
  std::set<uint64_t> gone_;     // regions of which the source has not said yet that it is done
};

}  // namespace braid::engine
