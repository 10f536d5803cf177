#include "comm/device/links/registry.h"

#include "base/check.h"
#include "comm/device/links/host_ring.h"
#include "comm/device/links/mirrors.h"
#include "comm/device/links/names.h"

namespace braid::comm {

std::vector<std::unique_ptr<DeviceLink>> make_links(const LinkGround& ground) {
  std::vector<std::unique_ptr<DeviceLink>> links;
  links.push_back(std::make_unique<HostRingLink>(ground));
  links.push_back(std::make_unique<MirrorLink>(ground));  // observers know it as "nic"
  BRAID_CHECK(links.size() + 1 == kGpuLinkNames.size(), "{} links", links.size());
  return links;
}

}  // namespace braid::comm
