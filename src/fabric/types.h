// What exists: plain facts about nodes, devices and links. No decision and no motion lives here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace braid::fabric {

enum class LinkKind : uint8_t {
  kShm,     // peer's shared memory, direct puts: the CPU twin of NVLink
  kStaged,  // a bounce ring in shared memory, one writer and many readers: the CPU twin of PCIe
            // through the host
  kRdma,    // a NIC, through libfabric or verbs
  kNvlink,
  kPcie,  // PCIe through pinned host memory
};
const char* link_kind_name(LinkKind kind) noexcept;  // "shm"

/// Where a number comes from; printed beside it.
enum class Source : uint8_t { kAssumed, kSpecified, kMeasured, kPaced };
const char* source_name(Source source) noexcept;  // "assumed"

/// One physical channel as one rank sees it: its end of the link towards all peers.
struct Link {
  std::string name;  // unique in the fabric and equal on all ranks: "shm", "staged", "rdma:tcp:lo"
  LinkKind kind = LinkKind::kShm;
  double rate_gbps = 0;        // GB/s = bytes per ns, per rank and direction, large messages
  int64_t latency_ns = 0;      // one way, empty message
  bool can_multicast = false;  // one write reaches all readers
  Source source = Source::kAssumed;
  std::string
      shares_with;  // name of the resource shared with other links ("pcie-x16:gpu3"); empty: none
  // What that resource carries per direction; 0: as much as its fastest link.
  double resource_gbps = 0;
};

struct Cpu {
  int socket = 0;
  int num_cores = 0;
  uint64_t memory_bytes = 0;
};
struct Gpu {
  int index = 0;
  std::string name;
  std::string pci_address;
  int numa_node = -1;
  uint64_t memory_bytes = 0;
  int num_nvlinks = 0;
  double nvlink_gbps = 0;
  int pcie_gen = 0;
  int pcie_width = 0;
};
struct Nic {
  std::string name;
  std::string pci_address;
  int numa_node = -1;
  double rate_gbps = 0;
  bool is_up = false;
  std::string provider;
  std::string address;
};
/// How close two devices of a node are, in nvidia-smi's words.
enum class PathKind : uint8_t { kSelf, kNvlink, kPix, kPxb, kPhb, kNode, kSys };
const char* path_kind_name(PathKind kind) noexcept;  // "PIX"
struct Path {
  int from = 0;
  int to = 0;
  PathKind kind = PathKind::kSys;
  double rate_gbps = 0;
};

struct Node {
  std::string name;
  std::string
      host_id;  // equal for ranks that can share memory: boot, pid namespace, network namespace
  std::vector<Cpu> cpus;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<Path> gpu_paths;      // between GPUs
  std::vector<Path> gpu_nic_paths;  // from GPU index to NIC index
};

struct Fabric {
  std::vector<Node> nodes;
  std::vector<Link> links;  // what a rank of this group can use, in preference order
  std::vector<int> node_of_rank;
};

}  // namespace braid::fabric
