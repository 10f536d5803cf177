// The links that the conformance suites run through: one line each. Whoever adds a link adds its line
// here, and lane_test.cc (between CPUs) or device_link_test.cc (between GPUs) says whether it keeps
// what transport/lane.h or comm/device/links/link.h promises.
#pragma once

#include <ostream>
#include <utility>
#include <vector>

#include "coll/ranks.h"
#include "support/desk_link.h"
#include "support/lane_ends.h"

namespace braid::test {

inline std::vector<LaneKind> links_between_cpus() {
  return {
      {"shm", shm_ends()},
      {"staged", staged_ends()},
      {"paced_shm", paced_ends(shm_ends()), true},
      {"paced_staged", paced_ends(staged_ends()), true},
      {"rdma_tcp", rdma_ends("tcp")},
      {"rdma_shm", rdma_ends("shm")},
  };
}

/// A link that a comm of GPUs has by `options`; or that `make` adds to those.
struct DeviceLinkKind {
  const char* name;   // of the test
  const char* found;  // of the link, by its facts
  Options options = {};
  std::function<std::unique_ptr<comm::DeviceLink>(const comm::LinkGround&, Desk&)> make = {};
};
inline void PrintTo(const DeviceLinkKind& kind, std::ostream* out) { *out << kind.name; }

template <typename Link>
std::unique_ptr<comm::DeviceLink> make_on_desk(const comm::LinkGround& ground, Desk& desk) {
  return std::make_unique<Link>(ground, desk);
}

inline std::vector<DeviceLinkKind> links_between_gpus() {
  return {
      {"nvlink", "nvlink"},
      {"nvlink_held", "nvlink", {{"BRAID_LINK_CAP", "nvlink:200GB/s"}}},
      {"pcie", "pcie", {{"BRAID_GPU_RING", "threads"}}},
      {"pcie_bulk", "pcie"},
      {"rdma",
       "rdma",
       {{"BRAID_GPU_RDMA", "on"}, {"BRAID_GPU_SLOT", "32KiB"}, {"BRAID_GPU_LANES", "4"}}},
      {"desk", "desk", {}, make_on_desk<DeskLink>},
  };
}

}  // namespace braid::test
