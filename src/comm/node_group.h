// NodeGroup: the ranks of this rank's node, seen as a group of their own, 0 to per_node - 1. What
// they exchange goes through the whole group, of which each rank looks at its own node's blobs: an
// exchange of one node is one of all nodes.
//
// How many a step takes follows from a node alone: what its disk keeps, what its clock says, what it
// has no memory for. So each rank that is through with a step says so in finish(), again and again,
// until there is an exchange in which all ranks of all nodes do. All have the same words of it, so
// all leave behind the same one, however many exchanges any node has needed. It comes: who is not
// through comes to its next exchange, where the others are, or gets through, by an error of its own
// or because a rank of its node says that it is through; and a rank that dies or stands still ends
// any exchange.
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
  /// Behind what the ranks of each node have exchanged, also where that ended in an error: ok when
  /// all ranks of all nodes are here. Else the whole group is out of step.
  Status finish(Deadline deadline);
  bool broken() const noexcept override { return whole_.broken(); }
  Status fate() const override { return whole_.fate(); }
  void report(const Status& why) override { whole_.report(why); }
  bool has_left(int rank) const noexcept override { return whole_.has_left(first() + rank); }
  void leave() override {}  // the whole group's owner does

 private:
  int first() const { return map_.rank_at(map_.node_of(whole_.rank()), 0); }

  group::Group& whole_;
  const fabric::NodeMap map_;
};

}  // namespace braid::comm
