#include "coll/host/node_sums.h"

#include <algorithm>

namespace braid::coll {

namespace {

using fabric::NodeMap;

// An average is a sum until its last step.
RedOp partial_op(RedOp op) { return op == RedOp::kAvg ? RedOp::kSum : op; }

int block_of(const NodeMap& map, int rank, int node) {
  return map.rank_at(node, map.local_of(rank));
}

bool has_place(const Moves& moves, int block) {
  return !moves.places.empty() && moves.places[static_cast<size_t>(block)].bytes ==
                                      moves.parts[static_cast<size_t>(block)].bytes;
}

// Blocks in scratch begin at cache lines.
constexpr uint64_t in_lines(uint64_t bytes) { return (bytes + 63) & ~uint64_t{63}; }

std::vector<Block> partials_of(const NodeMap& map, int rank, const Moves& moves,
                               std::byte* scratch) {
  std::vector<Block> partials;
  for (int node = 0; node < map.num_nodes; ++node) {
    const int block = block_of(map, rank, node);
    if (block == rank) {
      partials.push_back(moves.reduced);
    } else if (has_place(moves, block)) {
      partials.push_back(moves.places[static_cast<size_t>(block)]);
    } else {
      const uint64_t bytes = moves.parts[static_cast<size_t>(block)].bytes;
      partials.push_back({scratch, bytes});
      if (bytes > 0) scratch += in_lines(bytes);
    }
  }
  return partials;
}

}  // namespace

uint64_t NodeSums::scratch_bytes(const NodeMap& map, int rank, const Moves& moves) {
  uint64_t bytes = 0;
  for (int node = 0; node < map.num_nodes; ++node) {
    const int block = block_of(map, rank, node);
    if (block != rank && !has_place(moves, block))
      bytes += in_lines(moves.parts[static_cast<size_t>(block)].bytes);
  }
  return bytes;
}

NodeSums::NodeSums(const NodeMap& map, int rank, const Moves& moves, uint32_t cell_bytes,
                   std::byte* scratch)
    : map_(map),
      rank_(rank),
      cell_bytes_(cell_bytes),
      reduced_(moves.reduced),
      partials_(partials_of(map, rank, moves, scratch)),
      in_node_(static_cast<size_t>(map.size())),
      across_(map.node_of(rank), map.num_nodes, {}, moves.reduced, cell_bytes, moves.element(),
              moves.signature.redop, map.size()),
      on_rail_(static_cast<size_t>(map.num_nodes)) {
  for (int node = 0; node < map.num_nodes; ++node) {
    const ConstBlock own = moves.parts[static_cast<size_t>(block_of(map, rank, node))];
    inside_.emplace_back(map.local_of(rank), map.per_node, own, partial(node), cell_bytes,
                         moves.element(), partial_op(moves.signature.redop));
    const uint64_t cells = num_cells(own.bytes, cell_bytes);
    for (int local = 0; local < map.per_node; ++local)
      if (local != map.local_of(rank))
        in_node_[static_cast<size_t>(map.rank_at(node, local))].resize(cells);
    if (node != map.node_of(rank))
      on_rail_[static_cast<size_t>(node)].resize(num_cells(moves.reduced.bytes, cell_bytes));
  }
}

std::optional<NodeSums::Sum> NodeSums::sum_of(int source, int block) {
  if (block < 0 || block >= map_.size() || !map_.share_rail(block, rank_)) return std::nullopt;
  const int node = map_.node_of(block);
  if (map_.share_node(source, rank_)) {
    const int local = map_.local_of(source);
    return Sum{&inside_[static_cast<size_t>(node)],
               local,
               &in_node_[static_cast<size_t>(map_.rank_at(node, local))],
               partial(node),
               true,
               node};
  }
  if (block != rank_ || !map_.share_rail(source, rank_)) return std::nullopt;
  const int from = map_.node_of(source);
  return Sum{&across_, from, &on_rail_[static_cast<size_t>(from)], reduced_, false, node};
}

NodeSums::Sum NodeSums::add_own_partial(uint64_t cell) {
  const int node = map_.node_of(rank_);
  across_.add_own(cell, partial(node).data + cell_begin(cell, cell_bytes_));
  return {&across_, node, nullptr, reduced_, false, node};
}

uint64_t NodeSums::num_cells_to_reduce() const {
  return num_cells(reduced_.bytes, cell_bytes_) + num_cells_inside();
}

uint64_t NodeSums::num_cells_inside() const {
  uint64_t cells = 0;
  for (const Block& partial : partials_) cells += num_cells(partial.bytes, cell_bytes_);
  return cells;
}

uint64_t NodeSums::missing_from(int source) const {
  const auto missing = [](const std::vector<bool>& seen) {
    return static_cast<uint64_t>(std::count(seen.begin(), seen.end(), false));
  };
  if (!map_.share_node(source, rank_))
    return map_.share_rail(source, rank_)
               ? missing(on_rail_[static_cast<size_t>(map_.node_of(source))])
               : 0;
  uint64_t cells = 0;
  for (int node = 0; node < map_.num_nodes; ++node)
    cells += missing(in_node_[static_cast<size_t>(map_.rank_at(node, map_.local_of(source)))]);
  return cells;
}

}  // namespace braid::coll
