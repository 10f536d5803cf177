#include "fabric/types.h"

namespace braid::fabric {

const char* link_kind_name(LinkKind kind) noexcept {
  switch (kind) {
    case LinkKind::kShm: return "shm";
    case LinkKind::kStaged: return "staged";
    case LinkKind::kRdma: return "rdma";
    case LinkKind::kNvlink: return "nvlink";
    case LinkKind::kPcie: return "pcie";
  }
  return "unknown";
}

const char* source_name(Source source) noexcept {
  switch (source) {
    case Source::kAssumed: return "assumed";
    case Source::kSpecified: return "specified";
    case Source::kMeasured: return "measured";
    case Source::kPaced: return "paced";
  }
  return "unknown";
}

const char* path_kind_name(PathKind kind) noexcept {
  switch (kind) {
    case PathKind::kSelf: return "X";
    case PathKind::kNvlink: return "NV";
    case PathKind::kPix: return "PIX";
    case PathKind::kPxb: return "PXB";
    case PathKind::kPhb: return "PHB";
    case PathKind::kNode: return "NODE";
    case PathKind::kSys: return "SYS";
  }
  return "unknown";
}

}  // namespace braid::fabric
