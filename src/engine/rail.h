// The source's end of a rail: one endpoint for one connection on one of our NICs, and the pieces
// that are on their way through it.
//
//   down --call()--> called --connect()--> probing --the probe's write completes--> up
//   any  --close()--> down
//
// A rail carries pieces only after a probe of 8 bytes has landed: the first write of a connection
// may take long or never complete, and no piece should be held up by that.
//
// Threads: one.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/frames.h"
#include "engine/rate_meter.h"
#include "engine/transfer.h"

namespace braid::engine {

class Rail {
 public:
  enum class State : uint8_t { kDown, kCalled, kProbing, kUp, kFencing };

  /// A piece that was posted here, or has come back from here.
  struct Flight {
    Transfer* transfer = nullptr;
    Piece piece;
  };

  Rail(const Nic& nic, RailPair pair) : nic_(&nic), pair_(pair) {}

  State state() const { return state_; }
  const RailPair& pair() const { return pair_; }
  const sys::FabricDomain& domain() const { return *nic_->domain; }
  /// A new endpoint; answers its name, which the target is to be told.
  Result<std::string> call();
  /// What the target answered. The probe leaves with the next poll() that the provider lets it.
  Status connect(const RailReady& ready, int64_t now);
  /// The endpoint is closed: nothing of ours is read any more, and what lands at the target is for
  /// the target to end. The flights that had not completed.
  std::vector<Flight> close(State next, int64_t retry_at_ns);

  /// How many bytes more it should be given now, so that it neither idles nor hoards.
  uint64_t room_bytes() const;
  /// How long it will take for what it has and `bytes` more; 0 while its rate is not known.
  double finish_ns(uint64_t bytes) const;
  /// The largest piece it takes.
  uint64_t most_piece_bytes() const { return nic_->domain->limits().max_write_bytes; }
  /// false: busy.
  Result<bool> post(const Flight& flight, bool has_more, int64_t now);
  /// Appends what completed to `done`. Not ok: the rail has failed and must be closed.
  Status poll(std::vector<Flight>& done, int64_t now);

  uint64_t flying_bytes() const { return flying_bytes_; }
  size_t num_flying() const { return num_flying_; }
  /// Since when the oldest flight has been out, or, while none is, the endpoint has taken nothing that
  /// was posted; INT64_MAX when neither is so.
  int64_t waits_since_ns() const;
  /// Nobody wants to post any more.
  void rest() { busy_since_ns_ = 0; }
  double rate() const { return meter_.rate(); }
  int64_t retry_at_ns() const { return retry_at_ns_; }
  const std::string& why_down() const { return why_down_; }
  void set_why_down(std::string why) { why_down_ = std::move(why); }
  /// The pause before the next try, twice as long each time.
  int64_t next_pause_ns();

 private:
  struct Op : sys::FabricOp {
    Flight flight;
    int64_t posted_ns = 0;
    bool is_flying = false;
    bool is_probe = false;
    bool is_nudge = false;
  };
  static constexpr size_t kMostFlights = 256;

  Op* take_op();
  Result<bool> write_probe(Op* op);
  Status post_probe();
  Status nudge(int64_t now);
  void completed(Op& op, std::vector<Flight>& done, int64_t now);

  const Nic* nic_;
  const RailPair pair_;
  State state_ = State::kDown;
  std::unique_ptr<sys::FabricEndpoint> endpoint_;
  uint64_t peer_ = 0;
  std::deque<Op> ops_;
  std::deque<Op*> free_;  // the longest free first
  Op* probe_to_post_ = nullptr;
  NicKey probe_target_;
  size_t num_flying_ = 0;
  size_t num_reads_ = 0;  // of those that fly
  size_t num_nudges_ = 0;
  int64_t heard_ns_ = 0;  // when something has completed, or a nudge was sent
  uint64_t flying_bytes_ = 0;
  int64_t busy_since_ns_ = 0;  // 0: it took what was posted last
  RateMeter meter_;
  int64_t retry_at_ns_ = 0;
  int64_t pause_ns_ = 0;
  std::string why_down_;
};

}  // namespace braid::engine
