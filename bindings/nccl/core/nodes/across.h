// AcrossNodes: what a seat has of a communicator over several nodes, beside its comm, which is that
// of the ranks of its node.
//
//   sign()    before NCCL's init: this rank is in the roll over nodes
//   come()    at the first all_gather or reduce_scatter: all ranks hear of all, and judge alike. The
//             roll goes over to rank 0's process: whoever made the id may end from then on
//   join()    the group of all ranks
//   vote()    when each has set itself up, or failed to
//   connect() outside of captures: the rail between nodes, and what stages need
//   run()     calls
//
// A rank that cannot hear the outcome of come(), or of a vote, answers with an error at every later
// all_gather and reduce_scatter: the others may have taken the communicator over, or left it to
// NCCL, and it must not guess.
//
// Threads: as Seat.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "bindings/nccl/core.h"
#include "bindings/nccl/core/nodes/nccl_rail.h"
#include "bindings/nccl/core/nodes/roll_guest.h"
#include "bindings/nccl/core/nodes/verdict.h"
#include "coll/nodes/stages.h"

namespace braid::nccl {

class AcrossNodes {
 public:
  using IsAborted = std::function<bool()>;

  /// unsupported when nodes are not asked for, or the key has no mark; else why the roll could not
  /// be signed: then it is whole for nobody.
  static Result<std::unique_ptr<AcrossNodes>> sign(const std::string& key, const Config& config,
                                                   uint64_t process, uint64_t settings);
  ~AcrossNodes();

  /// What the ranks agree on. `why_not`: it is NCCL's, on all of them.
  struct Agreed {
    std::optional<Status> why_not;
  };
  /// Not ok: lost.
  Result<Agreed> come(int rank, int num_ranks, int nccl_version, const IsAborted& is_aborted);
  /// The group of all ranks. Between come() and vote(); nobody is lost who fails.
  Result<std::shared_ptr<group::Group>> join(Deadline deadline, const IsAborted& is_aborted);
  /// Not ok: lost.
  Result<Agreed> vote(bool yes, const IsAborted& is_aborted);
  /// Whether all come to a later meeting; `number` has not been used before. Not ok: lost.
  Result<bool> meet(size_t number, int64_t patience_ns, const IsAborted& is_aborted);

  /// Collective, behind a step that each node's comm has taken among its own ranks, with as many
  /// exchanges of `group` as that took (comm::NodeGroup): `why_not` where it is not done on all ranks
  /// of all nodes; `own` is how this one fared. Not ok: lost.
  Result<Agreed> finish(group::Group& group, const Status& own, Deadline deadline);

  bool is_connected() const { return is_connected_; }
  /// Collective, with the device's context: all ranks have a rail, or none (`why_not`). Not ok: lost.
  Result<Agreed> connect(const braid_nccl_rails& real, group::Group& group, comm::Device& device,
                         Deadline deadline);
  Status run(const braid_nccl_call& call);
  Status barrier(sys::Stream stream) { return stages_->barrier(stream); }
  /// Trouble of the rail, and what was lost.
  Status status();
  void lose(const Status& why) {
    const std::lock_guard lock(mutex_);
    lost_ = why;
  }
  Status lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  const fabric::NodeMap& map() const { return map_; }

  /// Before waits of this rank's are ended in vain. Its kernels behind the rail's do nothing any more,
  /// and the rail is ended, so that neither gives other ranks what is no result: they would take it
  /// for one, until they are told. By any thread; waits for a moment.
  void break_off(comm::Device& device);
  /// Ends what the rail has enqueued, beside the caller: NCCL waits for it, and it may stand behind
  /// work of the program's own communicator. False: there is no rail.
  bool begin_abort();
  /// This rank's part is over: later meetings are lost ones. In peace it waits for its work, in the
  /// device's context, some seconds, and then breaks it off; and for whoever is at a meeting, which `is_aborted` ends.
  void end(bool is_in_peace);

 private:
  AcrossNodes(const std::string& key, const Config& config, RankFacts facts,
              std::unique_ptr<RollGuest> guest)
      : key_(key),
        job_token_(config.text("BRAID_JOB_TOKEN")),
        facts_(std::move(facts)),
        may_share_(config.flag("BRAID_NCCL_SHARED")),
        is_exact_(config.flag("BRAID_NCCL_NODES_EXACT")),
        patience_ns_(config.duration_ns("BRAID_NCCL_MEET")),
        guest_(std::move(guest)) {}
  Result<Met> meet(const std::string& topic, std::string words, int64_t patience_ns,
                   const IsAborted& is_aborted);
  Result<Agreed> move_roll(const IsAborted& is_aborted);
  std::string open_roll() const;
  Result<std::unique_ptr<RollGuest>> sign_at(const std::string& told) const;
  Result<Agreed> tell_all(group::Group& group, const char* topic, const Status& own,
                          Deadline deadline);
  static Agreed left(const Status& why) { return Agreed{why}; }
  Status connect_own(const braid_nccl_rails& real, const std::string& id, comm::Device& device,
                     const NcclRail::GivesUp& gives_up);
  Status warm_up(const NcclRail::GivesUp& gives_up);
  bool finishes_in(int64_t time_ns);
  std::shared_ptr<NcclRail> rail() const {
    const std::lock_guard lock(mutex_);
    return rail_;
  }
  /// False where the communicator is being aborted: then nobody waits for what comes of the rail.
  bool put_rail(std::shared_ptr<NcclRail> rail);

  const std::string key_, job_token_;
  RankFacts facts_;
  const bool may_share_;
  const bool is_exact_;
  const int64_t patience_ns_;
  std::mutex guest_mutex_;  // held by who is at a meeting: a race's is in no call of the comm's
  std::unique_ptr<RollGuest> guest_;  // under guest_mutex_; null after end()
  int rank_ = -1, num_ranks_ = 0;
  fabric::NodeMap map_;
  Met served_;  // of the group
  // Watchdogs ask and abort while a call connects.
  mutable std::mutex mutex_;
  Status lost_;                     // under mutex_, as the next three
  std::shared_ptr<NcclRail> rail_;  // who aborts it holds it
  bool is_aborting_ = false;
  std::thread aborting_;
  std::atomic<bool> is_rail_aborted_{false};
  std::atomic<bool> is_connected_{false};
  std::unique_ptr<coll::nodes::Stages> stages_;
};

}  // namespace braid::nccl
