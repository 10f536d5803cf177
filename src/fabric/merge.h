// From what each rank found on its node to one Fabric for the group, and the links that every rank
// of it has. Pure: equal nodes give equal fabrics on every rank.
#pragma once

#include <string>
#include <vector>

#include "fabric/types.h"

namespace braid::fabric {

/// One entry per rank, in rank order; ranks with equal host_id are on one node (the first one's
/// facts count). The links are left empty.
Fabric merge(const std::vector<Node>& node_of_each_rank);

/// True when all ranks can share memory. False for no ranks.
bool is_one_host(const Fabric& fabric);

/// What a link of the CPU twin is taken to give before anything is measured. shm and staged are
/// copies by the rank's one thread, so they share its core and do not add up; rdma links are
/// networks, and rails do add up; a paced link is limited by its pace and shares nothing.
Link assumed_link(LinkKind kind, std::string name);
/// The same, held to a rate (0: not limited) and given a latency for an experiment.
Link paced_link(LinkKind kind, std::string name, double rate_gbps, int64_t latency_ns);

/// The links of ranks that own a GPU each: GPU i belongs to the node's i-th rank. Only links that
/// every rank has, with the slowest rank's rate: nvlink and pcie (through host memory) on one host,
/// rdma where every rank has a NIC that is up. The NIC nearest to a GPU counts, its rate divided by
/// the ranks that it is nearest to. Empty when a rank has no GPU.
std::vector<Link> gpu_links(const Fabric& fabric);

/// Index of the NIC nearest to a GPU that is up (the first of equals), -1 when there is none.
int nearest_nic(const Node& node, int gpu);

}  // namespace braid::fabric
