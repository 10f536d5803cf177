// A library of NCCL's whose ranks are threads with fake GPUs: communicators by id and their
// children, groups, captured calls, and a failure at any call. What it enqueues it does at once, in
// the caller's thread, or when a graph is replayed.
//
//   NcclOfThreads library({{&node0, 0}, {&node0, 1}, {&node1, 0}, {&node1, 1}});
//   the_library = &library;
//   Real real = real_of(rank);          // rank's own table
//
// A rank posts its calls, all of a group before it waits for any. The last to come does the work.
// What fails, stays: a rank that waits for one that failed waits until its own part of the
// communicator is aborted, as a kernel of NCCL's would. Who has aborted takes no part in what others
// post later: its memory may be gone. Nor does what a graph of its still has to do post or take
// anything, as kernels of NCCL's find the communicator aborted and end.
//
// Threads: any; a group belongs to its thread.
#pragma once

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bindings/nccl/calls.h"
#include "bindings/nccl/real.h"
#include "coll/reduce/reduce.h"
#include "support/graph_cuda.h"

namespace braid::nccl::programs {

inline constexpr int kMostThreadRanks = 6;

/// What becomes of a call that fails.
enum class Failure {
  kAnswer,  // it answers an error, and the others are told by the communicator's async error
  kStuck,   // it never ends, and all are told
  kSilent,  // it never ends, and nobody is told
};

class NcclOfThreads {
 public:
  struct Gpu {
    test::GraphCuda* machine;
    int device;
  };
  explicit NcclOfThreads(std::vector<Gpu> gpu_of_rank)
      : gpus_(std::move(gpu_of_rank)), num_calls_(gpus_.size()) {}

  /// Call number `nth` of this rank's from now on.
  void fail_at(int rank, uint64_t nth, Failure how) {
    failing_rank_ = rank;
    fails_at_ = nth;
    how_ = how;
  }
  bool has_failed() const { return has_failed_; }
  uint64_t num_calls(int rank) const { return num_calls_[static_cast<size_t>(rank)]; }

  NcclResult make_id(int rank, UniqueId* id);
  NcclResult make(int rank, NcclComm* comm, int size, const UniqueId& id, int place);
  NcclResult split(int rank, NcclComm parent, int color, int key, NcclComm* child);
  NcclResult abort(NcclComm comm);
  NcclResult async_error(NcclComm comm, NcclResult* error) const;
  static int size_of(NcclComm comm);
  static int place_of(NcclComm comm) { return of(comm).place; }
  int device_of(int rank) const { return gpus_[static_cast<size_t>(rank)].device; }
  NcclResult submit(int rank, const Call& call);
  NcclResult begin_group(int rank);
  NcclResult end_group(int rank);
  /// An answer of the rank's that has no communicator, and may be the one that fails.
  NcclResult answer(int rank) {
    return fails_now(rank) ? NcclResult::kSystemError : NcclResult::kSuccess;
  }

 private:
  struct Clique;
  struct Comm {
    std::shared_ptr<Clique> clique;
    int place = 0;
    uint64_t num_calls = 0;  // that were done: graphs replay them
    std::atomic<bool> is_aborted{false};
  };
  struct Item {
    Comm* comm = nullptr;
    Call call;
    int color = 0, key = 0;  // of a split
    bool is_split = false, is_stuck = false;
  };
  struct Slot {  // a call of all ranks
    std::vector<Item> items;
    std::vector<Comm*> children;  // of a split
    int num_posted = 0;
    bool is_done = false;
  };
  struct Letter {
    const Comm* from = nullptr;
    const void* bytes = nullptr;
    uint64_t num_bytes = 0;
    bool is_taken = false;
  };
  struct Clique {
    explicit Clique(int num) : size(num) {}
    const int size;
    std::mutex mutex;  // of all that follows
    std::condition_variable changed;
    int num_come = 0;
    bool is_broken = false;             // and everybody is told
    int64_t is_told_at_ns = INT64_MAX;  // a rank has aborted its part
    std::map<uint64_t, std::shared_ptr<Slot>> slots;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;
  };
  struct Group {
    int depth = 0;
    std::vector<Item> items;
    NcclResult error = NcclResult::kSuccess;
  };
  struct Posted {
    Comm* comm;
    std::shared_ptr<Slot> slot;
    std::shared_ptr<Letter> letter;  // sent
    const Item* received = nullptr;
  };

  static Comm& of(NcclComm comm) { return *static_cast<Comm*>(comm); }
  static Group& group() {
    thread_local Group of_thread;
    return of_thread;
  }
  bool fails_now(int rank);
  static void break_off(Clique& clique);
  Comm* add(std::shared_ptr<Clique> clique, int place);
  NcclResult enqueue(int rank, std::vector<Item> items);
  static void run(const std::vector<Item>& items);
  static Posted post(const Item& item);
  static void await(const Posted& posted);
  static void await_abort(Comm& comm);
  static void finish(Slot& slot);
  void finish_split(Slot& slot);

  const std::vector<Gpu> gpus_;
  std::vector<std::atomic<uint64_t>> num_calls_;
  int failing_rank_ = -1;
  uint64_t fails_at_ = 0;
  Failure how_ = Failure::kAnswer;
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<Comm>> comms_;
  uint32_t num_ids_ = 0;
};

inline bool NcclOfThreads::fails_now(int rank) {
  const uint64_t number = num_calls_[static_cast<size_t>(rank)]++;
  if (rank != failing_rank_ || number != fails_at_) return false;
  return has_failed_ = true;
}

inline void NcclOfThreads::break_off(Clique& clique) {
  const std::lock_guard lock(clique.mutex);
  clique.is_broken = true;
  clique.changed.notify_all();
}

// ---- communicators ----

/// As NCCL fills it: a number, and the address of its bootstrap.
inline NcclResult NcclOfThreads::make_id(int rank, UniqueId* id) {
  if (fails_now(rank)) return NcclResult::kSystemError;
  std::memset(id->bytes, 0, sizeof id->bytes);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
  const std::lock_guard lock(mutex_);
  const uint64_t number = static_cast<uint64_t>(now_ns()) << 8U | ++num_ids_ % 256;
  std::memcpy(id->bytes, &number, sizeof number);
  std::memcpy(id->bytes + sizeof number, &at, sizeof at);
  return NcclResult::kSuccess;
}

inline NcclOfThreads::Comm* NcclOfThreads::add(std::shared_ptr<Clique> clique, int place) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::make_unique<Comm>());
  comms_.back()->clique = std::move(clique);
  comms_.back()->place = place;
  return comms_.back().get();
}

inline NcclResult NcclOfThreads::make(int rank, NcclComm* comm, int size, const UniqueId& id,
                                      int place) {
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(mutex_);
    auto& named = cliques_[std::string(id.bytes, sizeof id.bytes)];
    if (!named) named = std::make_shared<Clique>(size);
    clique = named;
  }
  if (fails_now(rank)) return break_off(*clique), NcclResult::kSystemError;
  *comm = add(clique, place);
  std::unique_lock lock(clique->mutex);
  ++clique->num_come;
  clique->changed.notify_all();
  clique->changed.wait(lock, [&] { return clique->is_broken || clique->num_come == size; });
  return clique->is_broken ? NcclResult::kRemoteError : NcclResult::kSuccess;
}

inline NcclResult NcclOfThreads::split(int rank, NcclComm parent, int color, int key,
                                       NcclComm* child) {
  Item item;
  item.comm = &of(parent);
  item.color = color;
  item.key = key;
  item.is_split = true;
  if (fails_now(rank)) return break_off(*item.comm->clique), NcclResult::kSystemError;
  const Posted posted = post(item);
  {
    std::unique_lock lock(item.comm->clique->mutex);
    if (posted.slot->num_posted == item.comm->clique->size && !posted.slot->is_done) {
      finish_split(*posted.slot);
      item.comm->clique->changed.notify_all();
    }
    item.comm->clique->changed.wait(lock, [&] {
      return posted.slot->is_done || item.comm->is_aborted || item.comm->clique->is_broken;
    });
    if (!posted.slot->is_done) return NcclResult::kRemoteError;
  }
  *child = posted.slot->children[static_cast<size_t>(item.comm->place)];
  return NcclResult::kSuccess;
}

/// Children in the order of their keys, and of the parent's ranks.
inline void NcclOfThreads::finish_split(Slot& slot) {
  slot.children.resize(slot.items.size());
  std::map<int, std::vector<std::pair<int, size_t>>> by_color;
  for (size_t place = 0; place < slot.items.size(); ++place)
    if (slot.items[place].color >= 0)
      by_color[slot.items[place].color].emplace_back(slot.items[place].key, place);
  for (auto& [color, members] : by_color) {
    std::sort(members.begin(), members.end());
    const auto clique = std::make_shared<Clique>(static_cast<int>(members.size()));
    for (size_t i = 0; i < members.size(); ++i)
      slot.children[members[i].second] = add(clique, static_cast<int>(i));
  }
  slot.is_done = true;
}

/// The others see it by their connections, after a while.
inline NcclResult NcclOfThreads::abort(NcclComm comm) {
  Clique& clique = *of(comm).clique;
  const std::lock_guard lock(clique.mutex);
  of(comm).is_aborted = true;
  clique.is_told_at_ns = std::min(clique.is_told_at_ns, now_ns() + 1500_ms);
  clique.changed.notify_all();
  return NcclResult::kSuccess;
}

inline NcclResult NcclOfThreads::async_error(NcclComm comm, NcclResult* error) const {
  Clique& clique = *of(comm).clique;
  const std::lock_guard lock(clique.mutex);
  const bool is_bad = clique.is_broken || now_ns() >= clique.is_told_at_ns;
  *error = is_bad ? NcclResult::kRemoteError : NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

inline int NcclOfThreads::size_of(NcclComm comm) { return of(comm).clique->size; }

// ---- calls ----

inline NcclResult NcclOfThreads::begin_group(int rank) {
  if (fails_now(rank)) return NcclResult::kSystemError;
  ++group().depth;
  return NcclResult::kSuccess;
}

inline NcclResult NcclOfThreads::end_group(int rank) {
  Group& open = group();
  if (open.depth == 0) return NcclResult::kInvalidUsage;
  if (--open.depth > 0) return NcclResult::kSuccess;
  Group ended = std::exchange(open, Group{});
  if (fails_now(rank)) ended.error = NcclResult::kInternalError;
  if (ended.error == NcclResult::kSuccess) return enqueue(rank, std::move(ended.items));
  for (const Item& item : ended.items) break_off(*item.comm->clique);
  return ended.error;
}

inline NcclResult NcclOfThreads::submit(int rank, const Call& call) {
  Item item;
  item.comm = &of(call.comm);
  item.call = call;
  NcclResult result = NcclResult::kSuccess;
  Group& open = group();
  if (fails_now(rank)) {
    item.is_stuck = how_ != Failure::kAnswer;
    if (how_ != Failure::kSilent) break_off(*item.comm->clique);
    if (how_ == Failure::kAnswer) result = NcclResult::kInternalError;
  } else {
    (void)async_error(call.comm, &result);
  }
  if (item.comm->is_aborted) result = NcclResult::kInvalidArgument;
  if (result == NcclResult::kSuccess && open.depth == 0) return enqueue(rank, {item});
  if (open.depth > 0 && result == NcclResult::kSuccess) open.items.push_back(item);
  if (open.depth > 0 && result != NcclResult::kSuccess) open.error = result;
  return result;
}

inline NcclResult NcclOfThreads::enqueue(int rank, std::vector<Item> items) {
  if (items.empty()) return NcclResult::kSuccess;
  const sys::Stream stream{items[0].call.stream};
  const Status status = gpus_[static_cast<size_t>(rank)].machine->library_work(
      stream, "nccl", [items = std::move(items)] {
        run(items);
        return Status();
      });
  return status.ok() ? NcclResult::kSuccess : NcclResult::kUnhandledCudaError;
}

inline void NcclOfThreads::run(const std::vector<Item>& items) {
  std::vector<Posted> posted;
  for (const Item& item : items)
    if (item.comm->is_aborted) return;
  for (const Item& item : items)
    if (item.is_stuck) return await_abort(*item.comm);
  for (const Item& item : items) posted.push_back(post(item));
  // Letters that others wait for are taken before this rank waits for its own to be.
  for (const Posted& each : posted)
    if (each.received != nullptr) await(each);
  for (const Posted& each : posted)
    if (each.received == nullptr) await(each);
}

inline NcclOfThreads::Posted NcclOfThreads::post(const Item& item) {
  Comm& comm = *item.comm;
  Clique& clique = *comm.clique;
  const std::lock_guard lock(clique.mutex);
  if (!item.is_split && item.call.op == Op::kRecv) return {&comm, nullptr, nullptr, &item};
  if (!item.is_split && item.call.op == Op::kSend) {
    const auto letter = std::make_shared<Letter>();
    letter->from = &comm;
    letter->bytes = item.call.send;
    letter->num_bytes = block_bytes(item.call);
    clique.mail[{comm.place, item.call.root}].push_back(letter);
    clique.changed.notify_all();
    return {&comm, nullptr, letter};
  }
  const uint64_t number = comm.num_calls++;
  std::shared_ptr<Slot>& at = clique.slots[number];
  if (!at) {
    at = std::make_shared<Slot>();
    at->items.resize(static_cast<size_t>(clique.size));
  }
  const std::shared_ptr<Slot> slot = at;
  slot->items[static_cast<size_t>(comm.place)] = item;
  if (++slot->num_posted == clique.size) {
    clique.slots.erase(number);
    const bool are_all_here =
        std::none_of(slot->items.begin(), slot->items.end(),
                     [](const Item& one) { return one.comm->is_aborted.load(); });
    if (!item.is_split && are_all_here) finish(*slot);
    clique.changed.notify_all();
  }
  return {&comm, slot, nullptr};
}

inline void NcclOfThreads::await(const Posted& posted) {
  Clique& clique = *posted.comm->clique;
  std::unique_lock lock(clique.mutex);
  const auto wait_for = [&](const std::function<bool()>& is_there) {
    clique.changed.wait(lock, [&] { return is_there() || posted.comm->is_aborted; });
    return !posted.comm->is_aborted;
  };
  if (posted.received != nullptr) {
    const Call& call = posted.received->call;
    auto& mail = clique.mail[{call.root, posted.comm->place}];
    if (!wait_for([&] { return !mail.empty() && !mail.front()->from->is_aborted; })) return;
    const std::shared_ptr<Letter> letter = mail.front();
    mail.pop_front();
    EXPECT_EQ(letter->num_bytes, block_bytes(call)) << "a send and its receive";
    std::memcpy(call.recv, letter->bytes, std::min(letter->num_bytes, block_bytes(call)));
    letter->is_taken = true;
    clique.changed.notify_all();
    return;
  }
  if (posted.letter) (void)wait_for([&] { return posted.letter->is_taken; });
  if (posted.slot) (void)wait_for([&] { return posted.slot->is_done; });
}

inline void NcclOfThreads::await_abort(Comm& comm) {
  std::unique_lock lock(comm.clique->mutex);
  comm.clique->changed.wait(lock, [&] { return comm.is_aborted.load(); });
}

/// All of them have posted; sums are in the order of ranks, and rounded once.
inline void NcclOfThreads::finish(Slot& slot) {
  const Call& first = slot.items[0].call;
  const size_t size = slot.items.size(), block = block_bytes(first);
  const auto dtype = static_cast<Dtype>(first.dtype);
  const auto redop = static_cast<RedOp>(first.redop);
  std::vector<std::string> results(size);
  const auto sum_of = [&](size_t at) {
    std::vector<const void*> operands;
    for (const Item& item : slot.items)
      operands.push_back(static_cast<const char*>(item.call.send) + at);
    std::string sum(block, '\0');
    coll::reduce(operands, sum.data(), first.count, dtype, redop);
    return sum;
  };
  for (size_t r = 0; r < size; ++r) {
    std::string& result = results[r];
    EXPECT_EQ(slot.items[r].call.op, first.op) << "ranks of one communicator differ";
    EXPECT_EQ(slot.items[r].call.count, first.count) << "ranks of one communicator differ";
    switch (first.op) {
      case Op::kAllReduce: result = r == 0 ? sum_of(0) : results[0]; break;
      case Op::kReduceScatter: result = sum_of(r * block); break;
      case Op::kBroadcast:
        result.assign(
            static_cast<const char*>(slot.items[static_cast<size_t>(first.root)].call.send), block);
        break;
      default:
        for (const Item& item : slot.items)
          result.append(static_cast<const char*>(item.call.send) +
                            (first.op == Op::kAllToAll ? r * block : 0),
                        block);
    }
  }
  for (size_t r = 0; r < size; ++r)
    std::memcpy(slot.items[r].call.recv, results[r].data(), results[r].size());
  slot.is_done = true;
}

// ---- as functions, which NCCL's are ----

inline NcclOfThreads* the_library = nullptr;  // of the ranks that there are now

template <int kRank>
Real real_table() {
  using R = NcclResult;
  Real real{};
  real.version = [](int* version) { return *version = 22809, R::kSuccess; };
  real.unique_id = [](UniqueId* id) { return the_library->make_id(kRank, id); };
  real.init_rank_config = [](NcclComm* comm, int size, UniqueId id, int place, void*) {
    return the_library->make(kRank, comm, size, id, place);
  };
  real.split = [](NcclComm parent, int color, int key, NcclComm* child, void*) {
    return the_library->split(kRank, parent, color, key, child);
  };
  real.finalize = [](NcclComm) { return R::kSuccess; };
  real.destroy = [](NcclComm) { return R::kSuccess; };
  real.abort = [](NcclComm comm) { return the_library->abort(comm); };
  real.get_async_error = [](NcclComm comm, R* error) {
    return the_library->async_error(comm, error);
  };
  real.get_last_error = [](NcclComm) { return "NCCL's words"; };
  real.count = [](NcclComm comm, int* count) {
    return *count = NcclOfThreads::size_of(comm), the_library->answer(kRank);
  };
  real.user_rank = [](NcclComm comm, int* place) {
    return *place = NcclOfThreads::place_of(comm), the_library->answer(kRank);
  };
  real.device = [](NcclComm, int* device) {
    return *device = the_library->device_of(kRank), the_library->answer(kRank);
  };
  real.group_start = [] { return the_library->begin_group(kRank); };
  real.group_end = [] { return the_library->end_group(kRank); };
  real.all_reduce = [](const void* send, void* recv, size_t count, int dtype, int redop,
                       NcclComm comm, CudaStream stream) {
    return the_library->submit(kRank,
                               {Op::kAllReduce, send, recv, count, dtype, redop, 0, comm, stream});
  };
  real.all_gather = [](const void* send, void* recv, size_t count, int dtype, NcclComm comm,
                       CudaStream stream) {
    return the_library->submit(kRank,
                               {Op::kAllGather, send, recv, count, dtype, 0, 0, comm, stream});
  };
  real.reduce_scatter = [](const void* send, void* recv, size_t count, int dtype, int redop,
                           NcclComm comm, CudaStream stream) {
    return the_library->submit(
        kRank, {Op::kReduceScatter, send, recv, count, dtype, redop, 0, comm, stream});
  };
  real.broadcast = [](const void* send, void* recv, size_t count, int dtype, int root,
                      NcclComm comm, CudaStream stream) {
    return the_library->submit(kRank,
                               {Op::kBroadcast, send, recv, count, dtype, 0, root, comm, stream});
  };
  real.all_to_all = [](const void* send, void* recv, size_t count, int dtype, NcclComm comm,
                       CudaStream stream) {
    return the_library->submit(kRank,
                               {Op::kAllToAll, send, recv, count, dtype, 0, 0, comm, stream});
  };
  real.send = [](const void* send, size_t count, int dtype, int peer, NcclComm comm,
                 CudaStream stream) {
    return the_library->submit(kRank,
                               {Op::kSend, send, nullptr, count, dtype, 0, peer, comm, stream});
  };
  real.recv = [](void* recv, size_t count, int dtype, int peer, NcclComm comm, CudaStream stream) {
    return the_library->submit(kRank,
                               {Op::kRecv, nullptr, recv, count, dtype, 0, peer, comm, stream});
  };
  return real;
}

inline Real real_of(int rank) {
  static const std::array<Real, kMostThreadRanks> kTables{real_table<0>(), real_table<1>(),
                                                          real_table<2>(), real_table<3>(),
                                                          real_table<4>(), real_table<5>()};
  return kTables[static_cast<size_t>(rank)];
}

}  // namespace braid::nccl::programs
