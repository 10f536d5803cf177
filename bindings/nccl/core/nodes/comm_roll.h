// CommRoll: who has signed for one communicator, and its ranks' meetings; roll_host.h tells what becomes of
// them. It knows of no connection: a member is a name for one, and is told things by `tell`.
//
// Threads: one at a time. `tell` may call leave().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bindings/nccl/core/nodes/roll_wire.h"
#include "group/door.h"
#include "group/store.h"
#include "sys/net/api.h"

namespace braid::nccl {

/// Connections that wait to be accepted, at most.
inline constexpr int kRollBacklog = 4096;

class CommRoll {
 public:
  using Peer = group::Peer;
  using Tell = std::function<void(Peer&, const std::string& topic, std::string bytes)>;

  /// `at`: where the communicator's group is served, whatever its port.
  CommRoll(std::string name, const sys::Endpoint& at, Tell tell)
      : name_(std::move(name)), at_(at), tell_(std::move(tell)) {}

  /// Nobody is in it.
  bool is_empty() const { return let_in_.empty(); }
  void let_in(Peer& peer) { let_in_.insert(&peer); }
  void sign(Peer& peer) { have_signed_.insert(&peer); }
  /// False: it may not, for it has not signed, or there would be too many meetings.
  bool come(Peer& peer, const std::string& topic, const Coming& coming);
  /// Its connection has ended.
  void leave(Peer& peer);
  /// Ends meetings whose patience is over.
  void expire();

 private:
  struct Meeting {
    uint32_t num_ranks = 0;
    Deadline deadline = Deadline::after_ns(0);
    std::set<Peer*> at;
    std::vector<std::optional<std::string>> words;
    std::optional<Met> outcome;

    bool is_whole() const;
  };

  void judge(const std::string& topic, Meeting& meeting);
  Result<std::string> serve_group(uint32_t num_ranks);
  void end(const std::string& topic, Meeting& meeting, Met outcome);

  const std::string name_;
  const sys::Endpoint at_;
  const Tell tell_;
  std::set<Peer*> let_in_, have_signed_;
  bool has_lost_one_ = false;
  std::map<std::string, Meeting> meetings_;
  std::unique_ptr<group::Store> store_;
};

}  // namespace braid::nccl
