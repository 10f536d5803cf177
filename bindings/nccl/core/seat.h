// A seat: one rank's part of one NCCL communicator that may be taken over. Its comm and Device are
// made at the first call (open()), together with all ranks or not at all.
//
// Threads: open(), run(), join() and windows by one at a time; status(), interrupt() and close() by
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
#include "bindings/nccl/core/roll.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "group/group.h"
#include "sys/host/api.h"

namespace braid::nccl {

/// ok when this process may take communicators over; unavailable without a driver or kernels for
/// it.
Status check_machine();

class Seat {
 public:
  /// Signs the roll of the communicator called `key`. Ranks with other `settings` agree on nothing.
  static Result<std::unique_ptr<Seat>> sign(const std::string& key, uint64_t settings = 0);
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  void seal() { roll_.seal(); }
  /// ok when all ranks take the communicator over; else no rank does.
  Status open(int rank, int num_ranks, int device);
  Status run(const braid_nccl_call& call);
  /// Collective: calls land in place in this memory from now on. Null where it is gone.
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
  Seat(Config config, Roll roll) : config_(std::move(config)), roll_(std::move(roll)) {}
  Status open_with_others(int rank, int num_ranks, int device);
  Status set_up(int rank, int num_ranks, int device, Deadline deadline);
  Result<Rendezvous> serve();
  Result<Rendezvous> meet(int rank);
  Status with_device(const std::function<Status(comm::Device&)>& body);
  bool stop();
  void free_caller();
  void give_up_roll();

  const Config config_;
  const int process_id_ = sys::process_id();  // a fork's seat is not the fork's to give up
  Roll roll_;
  int device_ = -1;
  std::atomic<bool> is_aborted_{false};
  std::mutex opening_;  // held by open() from its first wait to its end; guards the next
  bool has_arrived_ = false;
  std::unique_ptr<comm::Comm> comm_;

  std::mutex mutex_;  // guards what follows: status() and close() look at it from other threads
  std::shared_ptr<group::Group> group_;
  bool is_setting_up_ = false;  // from the group on
  bool is_open_ = false;
};

}  // namespace braid::nccl
