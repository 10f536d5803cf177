// A seat: one rank's part of one NCCL communicator that may be taken over. Its comm and Device are
// made at the first call (open()), together with all ranks or not at all.
//
// Threads: open(), race(), run(), join() and windows by one at a time; status(), interrupt() and close() by
// any, also while another one is in open().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "bindings/nccl/core.h"
#include "bindings/nccl/core/nodes/across.h"
#include "bindings/nccl/core/race_budget.h"
#include "bindings/nccl/core/race_track.h"
#include "bindings/nccl/core/roll.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "group/group.h"
#include "sys/cuda/api.h"
#include "sys/host/api.h"

namespace braid::nccl {

/// ok when this process may take communicators over; unavailable without a driver or kernels for
/// it.
Status check_machine();

class Seat {
 public:
  /// Signs the roll of the communicator called `key`. Ranks with other `settings` agree on nothing.
  /// `cuda` is whose GPU it will be.
  static Result<std::unique_ptr<Seat>> sign(const std::string& key, uint64_t settings = 0,
                                            sys::Cuda& cuda = sys::real_cuda());
  /// The same by options that are not the environment's: ranks that are threads share that.
  static Result<std::unique_ptr<Seat>> sign(const std::string& key, uint64_t settings,
                                            sys::Cuda& cuda, Config config);
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  void seal() { roll_.seal(); }
  /// ok when all ranks take the communicator over; else no rank does, but where is_later() or
  /// is_lost().
  Status open(const braid_nccl_place& place);
  Status open(int rank, int num_ranks, int device) {
    return open({rank, num_ranks, device, BRAID_NCCL_ALL_GATHER, nullptr});
  }
  /// After open(): its ranks are on several nodes, so that all_gather and reduce_scatter alone are
  /// taken over.
  bool is_over_nodes() const { return is_over_nodes_; }
  /// Nothing is decided before one of these two is called.
  bool is_later() const { return is_later_; }
  /// What the ranks decided is not known here: later calls answer so.
  bool is_lost() const { return across_ && !across_->lost().ok(); }
  /// Whether the machine can sum in its switches (NVLink SHARP) and NCCL's environment lets it.
  bool has_sharp() const { return has_sharp_; }
  /// Which messages of an operation a race is about.
  struct Messages {
    bool is_large = false;
    bool in_windows = false;  // symmetric ones; of one node
  };
  /// Collective: which of the two is faster in this operation, in such messages.
  /// By what is kept of an earlier race, or within its part of BRAID_TUNE_TIME (race_budget.h). Without
  /// `real` all is braid's that there is memory for. After an error the seat is of no use.
  Status race(int op, Messages messages, const braid_nccl_real* real, braid_nccl_choice& choice);
  Status run(const braid_nccl_call& call);
  /// Collective: calls land in place in this memory from now on, or, on all ranks, they do not. Null
  /// where it is gone.
  Status add_window(const void* memory, uint64_t bytes);
  /// This rank's part of it ends.
  Status drop_window(const void* memory);
  Status join(std::span<void* const> streams);
  Status status();
  /// Waits of this rank end, and later calls fail. What lies before them on their streams, such as
  /// a kernel of NCCL's, is not waited for: the caller can end it only now.
  void interrupt();
  /// In peace: when all work is done, and the other ranks are told. Else interrupts.
  void close(bool is_in_peace);
  /// A goodbye to the other ranks, at the end of the process.
  void leave();

 private:
  Seat(Config config, Roll roll, sys::Cuda& cuda)
      : config_(std::move(config)),
        cuda_(cuda),
        roll_(std::move(roll)),
        race_budget_(config_.duration_ns("BRAID_TUNE_TIME")) {}
  Status open_with_others(const braid_nccl_place& place);
  Status open_here(const braid_nccl_place& place);
  Status open_over_nodes(const braid_nccl_place& place);
  Status agree_on_sharp(Deadline deadline);
  Status set_up(int rank, int num_ranks, int device, Deadline deadline);
  Status set_up_over_nodes(Deadline deadline);
  Status use_group(std::shared_ptr<group::Group> group);
  Status note_opened(const Status& verdict);
  Result<bool> connect_nodes();
  Status race_with_others(braid_nccl_op op, Messages messages, const braid_nccl_real* real,
                          braid_nccl_choice& choice);
  Status race_here(braid_nccl_op op, Messages messages, const braid_nccl_real* real,
                   braid_nccl_choice& choice);
  AcrossNodes::IsAborted is_aborted() const {
    return [this] { return is_aborted_.load(); };
  }
  Result<Rendezvous> serve();
  Result<Rendezvous> meet(int rank);
  Result<braid_nccl_choice> race_on(comm::Device& device, braid_nccl_op op, Messages messages,
                                    const braid_nccl_real& real);
  Result<bool> make_room(comm::Device& device);
  Status give_back_room(comm::Device& device);
  Result<AcrossNodes::Agreed> all_through(const Status& own, Deadline deadline);
  Result<bool> all_come_to(int op, Messages messages);
  Deadline race_deadline() const;
  Status with_device(const std::function<Status(comm::Device&)>& body);
  bool stop();
  void free_caller();
  void break_off_work();
  void give_up_roll();

  const Config config_;
  sys::Cuda& cuda_;
  const int process_id_ = sys::process_id();  // a fork's seat is not the fork's to give up
  Roll roll_;
  int device_ = -1;
  std::atomic<bool> is_aborted_{false};
  std::mutex opening_;  // held by open() from its first wait to its end; guards the next
  bool has_arrived_ = false;
  std::unique_ptr<AcrossNodes> across_;  // null: the communicator is one node's, or NCCL's
  bool is_over_nodes_ = false, is_later_ = false, has_no_rails_ = false;
  const braid_nccl_rails* rails_ = nullptr;
  std::shared_ptr<group::Group> group_;  // of all ranks; the comm uses it to its end
  std::unique_ptr<comm::Comm> comm_;
  bool has_sharp_ = false;
  RaceBudget race_budget_;
  bool keeps_room_ = false;  // some large messages are braid's
  RealCalls real_calls_;

  // Guards group_ and what follows: status() and close() look at it from other threads.
  std::mutex mutex_;
  bool is_setting_up_ = false;  // from the group on
  bool is_open_ = false;
};

}  // namespace braid::nccl
