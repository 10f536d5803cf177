#include "comm/device/links/registry.h"

#include "base/check.h"
#include "comm/device/links/host_ring.h"
#include "comm/device/links/mirrors.h"
#include "comm/device/links/names.h"
#include "comm/device/links/nvlink.h"

namespace braid::comm {

std::vector<std::unique_ptr<DeviceLink>> make_links(const LinkGround& ground) {
  std::vector<std::unique_ptr<DeviceLink>> links;
  links.push_back(std::make_unique<NvlinkLink>(ground));  // the base link
  links.push_back(std::make_unique<HostRingLink>(ground));
  links.push_back(std::make_unique<MirrorLink>(ground));  // observers know it as "nic"
  BRAID_CHECK(links.size() == kGpuLinkNames.size(), "{} links", links.size());
  return links;
}

}  // namespace braid::comm
