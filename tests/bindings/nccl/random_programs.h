// Programs as a user of NCCL's writes them, drawn by a seed: calls, groups, graphs and children of
// two communicators. All ranks run the same ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "bindings/nccl/calls.h"
#include "fabric/node_map.h"

namespace braid::nccl::programs {

/// What one call of all ranks has made: a communicator, or one for each color.
struct Family {
  std::vector<int> color, key;  // by rank
  bool is_alive = true;

  bool is_one() const {
    return std::all_of(color.begin(), color.end(), [&](int one) { return one == color[0]; });
  }
  /// The ranks of the communicator that `rank` has, in its order.
  std::vector<int> members(int rank) const {
    std::vector<std::pair<int, int>> sorted;
    for (int other = 0; other < static_cast<int>(color.size()); ++other)
      if (color[static_cast<size_t>(other)] == color[static_cast<size_t>(rank)])
        sorted.emplace_back(key[static_cast<size_t>(other)], other);
    std::sort(sorted.begin(), sorted.end());
    std::vector<int> ranks;
    for (const auto& [key_of, other] : sorted) ranks.push_back(other);
    return ranks;
  }
};

struct PlannedCall {
  Op op = Op::kAllGather;
  size_t family = 0;
  Dtype dtype = Dtype::kFloat32;
  RedOp redop = RedOp::kSum;
  uint64_t count = 1;
  int root = 0;
  bool is_in_place = false;
  size_t stream = 0;
  uint64_t number = 0;  // its data follow from it; no two calls have one
};

struct Step {
  enum class Kind { kCalls, kGroup, kGraph, kSplit, kDrop };
  Kind kind = Kind::kCalls;
  std::vector<PlannedCall> calls;
  bool is_grouped = false;  // in a graph
  int num_replays = 0;
  size_t family = 0;  // kSplit: the parent; kDrop: the one that ends
  Family child;
};
using Program = std::vector<Step>;

class ProgramGenerator {
 public:
  ProgramGenerator(uint64_t seed, std::vector<int> node_of_rank)
      : random_(static_cast<uint32_t>(seed * 2 + 1)), node_of_(std::move(node_of_rank)) {
    for (int whole = 0; whole < 2; ++whole) families_.push_back(all_ranks(1));
  }

  Program next() {
    Program program;
    for (uint64_t left = 1 + draw(4); left > 0; --left) program.push_back(next_step());
    return program;
  }
  /// Those that there are after all programs so far, also the ones that have ended.
  const std::vector<Family>& families() const { return families_; }

 private:
  uint64_t draw(uint64_t below) { return random_() % below; }
  int size() const { return static_cast<int>(node_of_.size()); }

  Family all_ranks(int direction) const {
    Family all;
    for (int rank = 0; rank < size(); ++rank) {
      all.color.push_back(0);
      all.key.push_back(direction * rank);
    }
    return all;
  }
  Family split_of(size_t parent) {
    if (!families_[parent].is_one()) return {};
    Family child = all_ranks(draw(2) == 0 ? 1 : -1);
    const uint64_t kind = draw(3);
    std::vector<int> num_on(static_cast<size_t>(size()));
    for (int rank = 0; rank < size(); ++rank) {
      const auto r = static_cast<size_t>(rank), node = static_cast<size_t>(node_of_[r]);
      const int local = num_on[node]++;
      if (kind == 1) child.color[r] = node_of_[r];
      if (kind == 2) child.color[r] = local;
    }
    return child;
  }

  Step next_step() {
    const uint64_t kind = draw(60);
    Step step;
    if (kind == 0 && num_alive() < 6) {
      step.kind = Step::Kind::kSplit;
      step.family = draw(2);
      step.child = split_of(step.family);
      families_.push_back(step.child);
    } else if (kind == 1 && num_alive() > 2) {
      step.kind = Step::Kind::kDrop;
      do step.family = draw(families_.size());
      while (step.family < 2 || !families_[step.family].is_alive);
      families_[step.family].is_alive = false;
    } else {
      step.kind = kind < 18   ? Step::Kind::kGroup
                  : kind < 26 ? Step::Kind::kGraph
                              : Step::Kind::kCalls;
      fill(step);
    }
    return step;
  }
  /// Calls of a graph are on one stream, those of a group on one or two.
  void fill(Step& step) {
    const bool is_graph = step.kind == Step::Kind::kGraph;
    const uint64_t num = step.kind == Step::Kind::kCalls ? 1 : 2 + draw(3);
    step.is_grouped = is_graph && draw(2) == 0;
    step.num_replays = is_graph ? static_cast<int>(1 + draw(3)) : 0;
    for (uint64_t i = 0; i < num; ++i) {
      step.calls.push_back(next_call());
      if (is_graph) step.calls.back().stream = 0;
    }
  }
  PlannedCall next_call() {
    PlannedCall call;
    do call.family = draw(3) > 0 ? draw(2) : draw(families_.size());
    while (!families_[call.family].is_alive);
    constexpr Op kOps[] = {Op::kAllGather,     Op::kReduceScatter, Op::kAllGather,
                           Op::kReduceScatter, Op::kAllGather,     Op::kReduceScatter,
                           Op::kAllReduce,     Op::kAllToAll,      Op::kBroadcast};
    // Fake GPUs have no broadcast: none on children, which may be braid's as a whole.
    call.op = kOps[draw(call.family < 2 ? std::size(kOps) : std::size(kOps) - 1)];
    call.dtype = static_cast<Dtype>(draw(kNumDtypes));  // NCCL's; braid has more
    call.redop = kAllRedOps[draw(std::size(kAllRedOps))];
    const uint64_t length = draw(64);
    call.count = 1 + draw(length == 0 ? 150'000 : length < 8 ? 9'000 : 400);
    call.root = static_cast<int>(draw(static_cast<uint64_t>(size())));
    // Of a broadcast and an all_to_all memory is the same, of the others one block of it.
    call.is_in_place = call.op != Op::kAllToAll && draw(2) == 0;
    call.stream = draw(4) == 0 ? 1 : 0;
    call.number = num_calls_++;
    return call;
  }
  size_t num_alive() const {
    return static_cast<size_t>(std::count_if(families_.begin(), families_.end(),
                                             [](const Family& each) { return each.is_alive; }));
  }

  std::minstd_rand random_;
  const std::vector<int> node_of_;
  std::vector<Family> families_;
  uint64_t num_calls_ = 0;
};

}  // namespace braid::nccl::programs
