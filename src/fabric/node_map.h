// NodeMap: how the ranks of a group lie on nodes, where that is regular: as many on each node, one
// node's ranks before the next one's. A *rail* is the ranks with one local index, one on each node.
#pragma once

#include <cstddef>
#include <span>

namespace braid::fabric {

struct NodeMap {
  int num_nodes = 1;
  int per_node = 1;

  constexpr int size() const { return num_nodes * per_node; }
  constexpr int node_of(int rank) const { return rank / per_node; }
  constexpr int local_of(int rank) const { return rank % per_node; }
  constexpr int rank_at(int node, int local) const { return node * per_node + local; }
  constexpr bool share_node(int a, int b) const { return node_of(a) == node_of(b); }
  constexpr bool share_rail(int a, int b) const { return local_of(a) == local_of(b); }
  /// Several nodes with several ranks each: only there have two stages something to gain.
  constexpr bool has_stages() const { return num_nodes > 1 && per_node > 1; }
  friend constexpr bool operator==(const NodeMap&, const NodeMap&) = default;
};

/// Whether ranks on the nodes `node_of_rank` lie like `map` says.
constexpr bool is_node_major(const NodeMap& map, std::span<const int> node_of_rank) {
  if (static_cast<int>(node_of_rank.size()) != map.size()) return false;
  for (int rank = 0; rank < map.size(); ++rank)
    if (node_of_rank[static_cast<std::size_t>(rank)] != map.node_of(rank)) return false;
  return true;
}

/// The map of ranks on the nodes `node_of_rank`, which are numbered in order of their first rank;
/// one node of all ranks where they do not lie regularly, which means: treat all ranks alike.
constexpr NodeMap node_map_of(std::span<const int> node_of_rank) {
  const auto size = static_cast<int>(node_of_rank.size());
  int num_nodes = 0;
  for (const int node : node_of_rank) num_nodes = node >= num_nodes ? node + 1 : num_nodes;
  if (num_nodes == 0 || size % num_nodes != 0) return {1, size > 0 ? size : 1};
  const NodeMap map{num_nodes, size / num_nodes};
  return is_node_major(map, node_of_rank) ? map : NodeMap{1, size};
}

}  // namespace braid::fabric
