// LinkSpec: which links the user asks for, parsed from BRAID_LINKS, BRAID_RDMA_ADDRS and
// BRAID_PACE.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "fabric/types.h"
#include "transport/connect.h"

namespace braid::comm {

struct LinkSpec {
  std::string name;  // "shm", "staged", "rdma" or, with several, "rdma0", "rdma1"...
  fabric::LinkKind kind = fabric::LinkKind::kShm;
  std::string provider;  // rdma only
  std::string address;
  bool is_paced = false;
  transport::PaceOptions pace;
};

/// Where the ranks are, as far as links go.
enum class Hosts : uint8_t {
  kOne,      // all ranks can share memory
  kSeveral,  // not all can: links are networks
  kStages,   // the same, and as many ranks on each: memory joins those of one host besides
};

/// The links to open, in preference order, and whether the user named them (a named link that
/// cannot be opened is an error, one that `auto` chose is left out). kStages: those that lead to
/// everyone first.
struct LinkSpecs {
  std::vector<LinkSpec> links;
  bool are_named = false;
};

/// Grammar: BRAID_LINKS = "auto" | item{,item}, item = shm | staged | rdma |
/// rdma:PROVIDER[:ADDRESS]; plain rdma is one link per address of BRAID_RDMA_ADDRS. BRAID_PACE =
/// name=rate[@latency]{,...}, name a link's or "rdma" for all of them. invalid_argument names the
/// word that is not understood.
Result<LinkSpecs> link_specs(const Config& config, Hosts hosts);

/// invalid_argument for providers of libfabric that move bytes through shared memory of their own: a
/// rank that is killed while it holds a lock there stops the others for ever, and no deadline of ours
/// ends that.
Status check_provider(const std::string& provider);

}  // namespace braid::comm
