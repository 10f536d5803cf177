// Memory between ranks for models of protocols, as weak as a GPU's: what a block stores is seen by
// others later, in any order, but that a release is seen behind everything that its block stored
// before, and behind all that its rank's earlier kernels stored. Loads see what has come.
//
// A model of a protocol is blocks that take their steps in random turns; run_blocks() is the turns.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace braid::test {

class WeakMemory {
 public:
  using Address = std::vector<int64_t>;

  struct Writer {
    int rank = 0;
    int block = 0;
    uint64_t kernel = 0;  // counted by rank
  };
  void store(const Writer& by, Address at, int64_t value) {
    pending_.push_back({by, std::move(at), value, false});
  }
  void release(const Writer& by, Address at, int64_t value) {
    pending_.push_back({by, std::move(at), value, true});
  }
  /// 0 where nothing was stored.
  int64_t load(const Address& at) const {
    const auto found = seen_.find(at);
    return found == seen_.end() ? 0 : found->second;
  }
  bool has_pending() const { return !pending_.empty(); }
  /// One store that may be seen now is.
  void settle_one(std::mt19937& random) {
    if (pending_.empty()) return;
    size_t i = random() % pending_.size();
    while (!may_be_seen(i)) --i;  // the oldest always may
    seen_[pending_[i].at] = pending_[i].value;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
  }

 private:
  struct Store {
    Writer by;
    Address at;
    int64_t value;
    bool is_release;
  };
  bool may_be_seen(size_t index) const {
    const Store& later = pending_[index];
    for (size_t i = 0; i < index; ++i) {
      const Store& earlier = pending_[i];
      if (earlier.by.rank != later.by.rank) continue;
      if (earlier.at == later.at) return false;
      if (later.is_release &&
          (earlier.by.block == later.by.block || earlier.by.kernel < later.by.kernel))
        return false;
    }
    return true;
  }

  std::vector<Store> pending_;  // in the order in which they were stored
  std::map<Address, int64_t> seen_;
};

/// What a block does, in order. A step that waits answers false until it may pass.
using ModelStep = std::function<bool()>;

/// One rank's blocks of a kernel, of which `resident` run at once, the first ones first.
struct ModelKernel {
  std::vector<std::vector<ModelStep>> blocks;
  size_t resident = 1;
  /// What a block does when it has done all that; nothing: it has ended.
  std::function<std::vector<ModelStep>(size_t block)> more = {};
};

/// Whether the block has not ended: asks for more.
inline bool has_steps(ModelKernel& kernel, size_t at, size_t block) {
  std::vector<ModelStep>& steps = kernel.blocks[block];
  if (at == steps.size() && kernel.more)
    for (ModelStep& step : kernel.more(block)) steps.push_back(std::move(step));
  return at < steps.size();
}

/// Every rank's kernels, one after the other; a kernel is made when the one before has ended.
/// `error` is set by steps. What went wrong, or nothing.
inline std::string run_kernels(int num_ranks, size_t num_kernels, WeakMemory& memory,
                               std::mt19937& random, const std::string& error,
                               const std::function<ModelKernel(int rank, size_t kernel)>& make) {
  struct Running {
    ModelKernel kernel;
    std::vector<size_t> at;
    size_t number = 0;
  };
  std::vector<Running> ranks(static_cast<size_t>(num_ranks));
  const auto begin = [&](int r) {
    Running& rank = ranks[static_cast<size_t>(r)];
    if (rank.number < num_kernels) rank.kernel = make(r, rank.number);
    rank.at.assign(rank.kernel.blocks.size(), 0);
  };
  // One step of one block, beginning anywhere; false: none can go on.
  const auto step = [&](int r) {
    Running& rank = ranks[static_cast<size_t>(r)];
    if (rank.number == num_kernels) return false;
    std::vector<size_t> running;
    for (size_t b = 0; b < rank.at.size() && running.size() < rank.kernel.resident; ++b)
      if (has_steps(rank.kernel, rank.at[b], b)) running.push_back(b);
    if (running.empty()) {
      ++rank.number;
      begin(r);
      return true;
    }
    const size_t first = random() % running.size();
    for (size_t i = 0; i < running.size(); ++i) {
      const size_t b = running[(first + i) % running.size()];
      if (!rank.kernel.blocks[b][rank.at[b]]()) continue;
      ++rank.at[b];
      return true;
    }
    return false;
  };
  for (int r = 0; r < num_ranks; ++r) begin(r);
  std::vector<int> turns;  // a slow rank has one of them, the others ten
  for (int r = 0; r < num_ranks; ++r) turns.insert(turns.end(), random() % 3 == 0 ? 1 : 10, r);
  const uint32_t settle_every = 1 + random() % 8;
  const auto is_over = [&] {
    for (const Running& rank : ranks)
      if (rank.number < num_kernels) return false;
    return true;
  };
  while (error.empty() && !is_over()) {
    bool has_moved = step(turns[random() % turns.size()]);
    if (random() % settle_every == 0) memory.settle_one(random);
    for (int r = 0; !has_moved && r < num_ranks; ++r) has_moved = step(r);
    if (has_moved) continue;
    if (!memory.has_pending()) return "nobody can go on";
    memory.settle_one(random);
  }
  return error;
}

}  // namespace braid::test
