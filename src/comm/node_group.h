// NodeGroup: the ranks of this rank's node, seen as a group of their own, 0 to per_node - 1. What
// they exchange goes through the whole group, so all nodes open the same things at the same time:
// every rank of the comm takes every step, and each looks at its own node's blobs. What one node
// gives up after its first exchange the others do not hear of before the last: finish() takes part
// in those that are left.
//
// Threads: as Group.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fabric/node_map.h"
#include "group/group.h"

namespace braid::comm {

class NodeGroup final : public group::Group {
 public:
  /// `whole` must outlive it.
  NodeGroup(group::Group& whole, const fabric::NodeMap& map) : whole_(whole), map_(map) {}

  int rank() const override { return map_.local_of(whole_.rank()); }
  int size() const override { return map_.per_node; }
  int local_rank() const override { return whole_.local_rank(); }
  /// "node 1 (from rank 4 on)", for messages that number its ranks from 0.
  std::string name() const;

  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                            Deadline deadline) override;
  Status barrier(std::string_view topic, Deadline deadline) override {
    return exchange(topic, "", deadline).status();
  }
  /// Takes part in exchanges until there have been `count`.
  Status finish(int count, Deadline deadline);
  bool broken() const noexcept override { return whole_.broken(); }
  Status fate() const override { return whole_.fate(); }
  void report(const Status& why) override { whole_.report(why); }
  bool has_left(int rank) const noexcept override { return whole_.has_left(first() + rank); }
  void leave() override {}  // the whole group's owner does

 private:
  int first() const { return map_.rank_at(map_.node_of(whole_.rank()), 0); }

  group::Group& whole_;
  const fabric::NodeMap map_;
  int num_exchanges_ = 0;
};

}  // namespace braid::comm
