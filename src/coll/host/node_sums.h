// NodeSums: what a rank adds in a sum over several nodes. Of every node's block on its rail it adds
// its own node's operands, in rank order; of its own block then the partials of all nodes, in the
// order of nodes (coll/nodes/schedule.h). Each of the two steps rounds once, so a result depends on
// how ranks lie on nodes and on nothing else that happens.
//
// Partials need memory until they have left. One of another node's block lies where that block's
// result will come, where it comes to this rank at all (all_reduce): it comes only after its owner
// has had the partial. The own block's lies where its result goes. Else it lies in scratch.
//
// Threads: the comm's lock. Lives for one call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "coll/host/moves.h"
#include "coll/host/reducer.h"
#include "fabric/node_map.h"

namespace braid::coll {

class NodeSums {
 public:
  /// Bytes of scratch that the partials of `moves` need beside its own buffers.
  static uint64_t scratch_bytes(const fabric::NodeMap& map, int rank, const Moves& moves);

  /// `scratch` has scratch_bytes().
  NodeSums(const fabric::NodeMap& map, int rank, const Moves& moves, uint32_t cell_bytes,
           std::byte* scratch);

  /// What a piece adds to: this node's sum of a block, or the sum of all nodes' partials.
  struct Sum {
    Reducer* reducer = nullptr;
    int operand = 0;  // the source's place in the order
    std::vector<bool>* seen = nullptr;
    Block out;
    bool is_inside = false;  // a node
    int node = 0;            // whose block
  };
  /// Where an operand of `block` from `source` belongs; nothing when it cannot be true.
  std::optional<Sum> sum_of(int source, int block);
  /// The sum of partials, which the node's own partial of `cell` is now added to.
  Sum add_own_partial(uint64_t cell);

  /// Cells that are to be reduced, of all sums together.
  uint64_t num_cells_to_reduce() const;
  /// Those of them that are this node's sums.
  uint64_t num_cells_inside() const;
  /// Cells that `source` still owes.
  uint64_t missing_from(int source) const;

 private:
  Block partial(int node) const { return partials_[static_cast<size_t>(node)]; }

  fabric::NodeMap map_;
  int rank_;
  uint32_t cell_bytes_;
  Block reduced_;
  std::vector<Block> partials_;             // by node: this node's of that node's block
  std::vector<Reducer> inside_;             // by node
  std::vector<std::vector<bool>> in_node_;  // by node x local index of the source
  Reducer across_;
  std::vector<std::vector<bool>> on_rail_;  // by node of the source
};

}  // namespace braid::coll
