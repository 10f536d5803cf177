// What stands between a program and NCCL: it watches communicators being made, decides call by
// call, and keeps the calls of a group that it takes over until the group's end. How all ranks
// decide alike: docs/decisions/0006-nccl-drop-in.md.
//
//   shim_comms.cc    communicators, from before they are made to their end
//   shim_windows.cc  their windows of symmetric memory
//   shim.cc          one call
//   shim_races.cc    who gets it: braid and NCCL timed, when an operation is called first
//   shim_groups.cc   the calls of a group
//   shim_rails.cc    the real library as the core's way between nodes
//
// A process may have several ranks of a communicator, one per GPU, and one thread may serve them
// all. So nothing waits for another rank before the end of a group, and there every rank has a
// thread of its own where it could wait.
//
// Threads: as NCCL, a group belongs to a thread; everything may be called by any.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bindings/nccl/calls.h"
#include "bindings/nccl/comms.h"
#include "bindings/nccl/core.h"
#include "bindings/nccl/real.h"
#include "bindings/nccl/reasons.h"

namespace braid::nccl {

/// How many calls of each Op went where.
struct Counts {
  std::array<std::atomic<uint64_t>, kNumOps> taken{}, handed_on{};
};

class Shim {
 public:
  /// The core, once it is needed; null when it cannot be opened.
  using OpenCore = std::function<const braid_nccl_core*()>;

  Shim(const Real& real, Settings settings, OpenCore open_core)
      : real_(real), settings_(settings), open_core_(std::move(open_core)) {}

  /// Marks the id, where communicators over several nodes may be taken over.
  NcclResult make_id(UniqueId* id);

  // Communicators. `make` is the real call, `config` speed_of_config().
  NcclResult create(const std::string& key, int num_ranks, NcclComm* comm,
                    const std::function<NcclResult()>& make, uint64_t config = 0);
  /// All ranks of one communicator, of this process.
  NcclResult create_all(int num_ranks, NcclComm* comms, const std::function<NcclResult()>& make);
  NcclResult split(NcclComm parent, int color, int key, NcclComm* child, void* config);
  NcclResult shrink(NcclComm parent, int* excluded, int num_excluded, NcclComm* child, void* config,
                    int flags);
  NcclResult finalize(NcclComm comm);
  NcclResult destroy(NcclComm comm);
  NcclResult abort(NcclComm comm);
  NcclResult revoke(NcclComm comm, int flags);
  NcclResult add_window(NcclComm comm, void* memory, size_t bytes, void** window, int flags);
  NcclResult drop_window(NcclComm comm, void* window);
  NcclResult get_async_error(NcclComm comm, NcclResult* error);
  const char* get_last_error(NcclComm comm);

  // Calls. `call` may also be of kSend or kRecv.
  NcclResult submit(const Call& call);
  NcclResult group_start();
  NcclResult group_end();
  NcclResult group_simulate_end(void* simulation);

  const Counts& counts() const { return counts_; }
  const Reasons& reasons() const { return reasons_; }
  /// Off: communicators made from now on are left to NCCL.
  void sign_for_more(bool is_on) { signs_ = is_on; }
  /// In a forked child: everything is handed on from now on, without a look at anything that
  /// another thread of the parent may have held in its hands, such as a lock. By the child's only
  /// thread.
  void disown();

 private:
  bool passes() const;  // nothing of this call is ours
  std::shared_ptr<Entry> sign(const std::string& key, int num_ranks, uint64_t config);
  const char* why_never(int num_ranks) const;
  NcclResult make_signed(std::vector<std::shared_ptr<Entry>> entries, NcclComm* comms,
                         const std::function<NcclResult()>& make);
  void adopt(NcclComm* comm, std::shared_ptr<Entry> entry, NcclResult made);
  void part(const std::shared_ptr<Entry>& entry, bool is_in_peace);
  static void interrupt(Entry& entry);
  bool learn(Entry& entry, NcclComm comm);
  /// Sizes of an operation, in symmetric windows or elsewhere, in which a race, or room for it, is to
  /// come first.
  struct Race {
    Op op;
    bool is_large, in_windows;
    auto operator<=>(const Race&) const = default;
  };
  using Races = std::set<Race>;
  void settle(Entry& entry, Op op);
  void open(Entry& entry, Op op);
  void lose(Entry& entry, const char* why);
  static bool is_known(const Entry& entry, const Race& race) {
    return entry.chosen(race.op, race.in_windows).is_known[race.is_large ? 1 : 0];
  }
  Races races_before(const Entry& entry, const Call& call) const;
  static bool is_captured(const Entry& entry, const Call& call) {
    return entry.core().is_capturing(entry.device(), call.stream) != 0;
  }
  bool minds_windows(const Entry& entry, const Call& call) const;
  bool is_in_windows(const Entry& entry, const Call& call) const;
  bool may_be_in_new_window(const Entry& entry, const Call& call) const;
  void race_all(Entry& entry, NcclComm comm, const Races& races);
  void race(Entry& entry, NcclComm comm, const Race& race);
  bool is_ours(const Entry& entry, const Call& call) const;
  void map_windows(Entry& entry);
  void say_left(const Entry& entry, const std::string& why);
  void leave(const Entry* entry, const Call& call) {
    reasons_.note(why_left(settings_, entry, call));
  }
  bool may_take(Entry& entry, const Call& call);
  NcclResult run(Entry& entry, const Call& call);
  NcclResult hand_on(const Call& call);
  NcclResult refuse(const Call& call);
  NcclResult forward(const Call& call);
  NcclResult forward_all_to_all(const Call& call);
  NcclResult end_of(NcclComm rail, NcclResult now);
  NcclResult end_of(Entry& entry, NcclComm comm, NcclResult now);
  static int run_real(void* racer, const braid_nccl_call* call);
  static int open_window_of_race(void* racer, void* memory, uint64_t bytes, void** window);
  void keep_handle(std::unique_ptr<void*> handle);
  NcclResult give_all(NcclComm rail, const void* send, void* recv, uint64_t bytes,
                      CudaStream stream);
  NcclResult exchange(NcclComm rail, const braid_nccl_passage& passage, CudaStream stream);
  const braid_nccl_rails* rails();

  // The end of a group.
  struct Kept {
    std::shared_ptr<Entry> entry;
    Call call;
  };
  struct MadeWindow {  // whose handle is written at a group's end, or later
    std::shared_ptr<Entry> entry;
    NcclComm comm;
    void* memory;
    size_t bytes;
    void** where;
  };
  void note_window(const MadeWindow& made);
  struct Group;
  static Group& this_group();
  std::optional<Group> ended_group();
  void break_off(Group& group);
  NcclResult end_outermost(Group& group);
  NcclResult end_real(Group& group);
  void note_windows(Group& group, NcclResult ended);
  struct Needs {  // of a communicator in a group
    NcclComm comm = nullptr;
    Op op{};  // the first that may be what all of it is decided at
    bool has_window = false;
    std::vector<Call> calls;  // that are not captured
  };
  std::map<Entry*, Needs> needs_of(const Group& group) const;
  void settle_one(Entry& entry, const Needs& needs, const std::latch& real_end);
  NcclResult settle_beside(Group& group);
  void find_exchanges(std::vector<Kept>& kept);
  NcclResult hand_on_rest(Group& group);
  NcclResult run_joined(const Group& group);
  NcclResult run_all(const std::vector<Kept>& kept);
  static bool fills_streams(const std::vector<Kept>& kept);
  static bool meets_itself(const std::vector<Kept>& kept);
  static bool has_own_streams(const std::vector<Kept>& kept);
  NcclResult join_streams(const std::vector<Kept>& kept, const std::vector<Kept>& beside);

  const Real real_;
  const Settings settings_;
  const uint64_t fingerprint_ = fingerprint(settings_);
  const OpenCore open_core_;
  braid_nccl_rails rails_{};
  std::once_flag rails_once_;
  Comms comms_;
  Counts counts_;
  Reasons reasons_;
  std::atomic<bool> signs_{true};
  std::atomic<bool> is_disowned_{false};
  std::mutex said_mutex_;
  std::string said_key_, said_;  // the last warning
  std::mutex handles_mutex_;
  std::vector<std::unique_ptr<void*>> handles_;  // that the real library may yet write
  std::shared_ptr<Group> parents_group_;         // of a forked child
};

/// One thread's group.
struct Shim::Group {
  struct Made {  // a communicator whose address is written at the group's end
    NcclComm* where;
    std::shared_ptr<Entry> entry;
  };
  int depth = 0;
  std::vector<Kept> kept;
  std::vector<Kept> beside;  // handed on, of communicators of which others may be kept
  std::vector<Made> made;
  std::vector<MadeWindow> windows;
  std::vector<std::shared_ptr<Entry>> aborted;
  NcclResult error = NcclResult::kSuccess;
  bool is_open = true;  // the real group, at its end
};

}  // namespace braid::nccl
