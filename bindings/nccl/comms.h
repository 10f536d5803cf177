// What we know about the real communicators: a table beside them, by their address.
//
// Threads: any. An entry is used by the threads of its communicator, which NCCL lets in one at a
// time, but for abort, get_async_error and get_last_error.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/nccl/abi.h"
#include "bindings/nccl/calls.h"
#include "bindings/nccl/core.h"
#include "bindings/nccl/windows.h"

namespace braid::nccl {

/// Who has the calls of an operation, as far as that is decided: small ones when the first of them
/// comes, and large ones when one of those does.
struct Chosen {
  braid_nccl_choice choice{};
  bool is_known[2] = {false, false};  // small, large
};

class Entry {
 public:
  enum class State { kUndecided, kTaken, kHandedOn };

  /// `key` is equal on all ranks of the communicator, and no other one has it. Without a seat it is
  /// handed on, and only its children may be taken over.
  /// `config`: speed_of_config().
  Entry(const braid_nccl_core* core, std::string key, braid_nccl_seat* seat, uint64_t config)
      : core_(core),
        key_(std::move(key)),
        config_(config),
        seat_(seat),
        state_(seat == nullptr ? State::kHandedOn : State::kUndecided) {}
  ~Entry() {
    if (seat_ != nullptr) core_->release(seat_);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  const braid_nccl_core& core() const { return *core_; }
  const std::string& key() const { return key_; }
  uint64_t config() const { return config_; }
  braid_nccl_seat* seat() const { return seat_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  void decide(State state) { state_.store(state, std::memory_order_release); }
  /// What NCCL says about the communicator once it is made. num_ranks() is 0 before.
  void learn(int num_ranks, int rank, int device) {
    rank_ = rank;
    device_ = device;
    num_ranks_ = num_ranks;
  }
  int num_ranks() const { return num_ranks_; }
  int rank() const { return rank_; }      // -1: NCCL does not say
  int device() const { return device_; }  // -1: NCCL does not say

  /// What is known of an operation, in symmetric windows or elsewhere. By the communicator's thread.
  const Chosen& chosen(Op op, bool in_windows = false) const {
    return chosen_[in_windows ? 1 : 0][static_cast<size_t>(op)];
  }
  Chosen& chosen(Op op, bool in_windows = false) {
    return chosen_[in_windows ? 1 : 0][static_cast<size_t>(op)];
  }
  /// NCCL may sum in switches.
  bool has_sharp() const { return has_sharp_; }
  void note_sharp(bool has) { has_sharp_ = has; }
  /// Its ranks are on several nodes, or seem to be: nothing but all_gather and reduce_scatter may be
  /// taken over.
  bool is_over_nodes() const { return is_over_nodes_.load(std::memory_order_acquire); }
  void note_over_nodes() { is_over_nodes_.store(true, std::memory_order_release); }
  /// Whether a call was taken over: from then on there is no way back to NCCL.
  bool has_run() const { return has_run_; }
  void note_run() { has_run_ = true; }

  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }
  /// Whether something is to be done, together with all ranks, before a call.
  bool must_settle() const {
    return state() == State::kUndecided || (state() == State::kTaken && windows_.has_new());
  }

  /// The program has broken it off: a call that waited meanwhile is not NCCL's to have, for which
  /// the communicator may be gone. Waits for who is in unless_given_up().
  void give_up() {
    const std::lock_guard nobody_asks(asking_);
    is_given_up_.store(true, std::memory_order_release);
  }
  bool is_given_up() const { return is_given_up_.load(std::memory_order_acquire); }
  /// Calls ask(), a short question to the real communicator, which is there until ask() is through.
  /// False: it was given up before, and was not asked.
  template <typename Ask>
  bool unless_given_up(const Ask& ask) {
    const std::lock_guard lock(asking_);
    if (is_given_up()) return false;
    ask();
    return true;
  }

  /// The key of the next child by a call `kind` with the argument `which`. All ranks of the child
  /// have made the same calls with that argument before, whatever else they did: no two children
  /// have one key.
  std::string next_child(const std::string& kind, const std::string& which);

  /// The first error of a call that was taken over; its text stays where it is.
  void fail(const char* text);
  const char* error() const { return has_failed_.load() ? error_.c_str() : nullptr; }

 private:
  friend class Comms;
  const braid_nccl_core* const core_;
  const std::string key_;
  const uint64_t config_;
  braid_nccl_seat* const seat_;
  std::atomic<State> state_;
  std::mutex asking_;
  std::atomic<bool> is_given_up_{false};
  int num_ranks_ = 0, rank_ = -1, device_ = -1;
  std::map<std::string, int> num_children_;            // by kind
  std::array<std::array<Chosen, kNumOps>, 2> chosen_;  // the others, those in windows
  bool has_sharp_ = false;
  std::atomic<bool> is_over_nodes_{false};
  std::atomic<bool> has_run_{false};
  Windows windows_;
  std::mutex error_mutex_;
  std::string error_;
  std::atomic<bool> has_failed_{false};
  bool has_parted_ = false;  // of Comms, and under its mutex
};

class Comms {
 public:
  /// Null for a communicator that we did not see being made.
  std::shared_ptr<Entry> find(NcclComm comm) const;
  /// Replaces what lay at the address: a communicator that was freed where we could not see it.
  void put(NcclComm comm, std::shared_ptr<Entry> entry);
  std::shared_ptr<Entry> take(NcclComm comm);

  /// The program is done with this rank of the communicator. Answers the ranks of this process
  /// whose parts end now: none before the last of them, for a single thread lets go of one after
  /// the other, and each would wait for the next.
  std::vector<std::shared_ptr<Entry>> part(const std::shared_ptr<Entry>& entry);

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<NcclComm, std::shared_ptr<Entry>> entries_;
  std::map<std::string, std::vector<std::shared_ptr<Entry>>> parting_;  // by key
};

}  // namespace braid::nccl
