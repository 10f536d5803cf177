#include "comm/device/options.h"

#include "comm/device/links/nic.h"
#include "comm/device/links/ring_engine.h"

namespace braid::comm {

Status check_gpu_options(const Config& config) {
  BRAID_RETURN_IF_ERROR(check_nic_wish(config));
  return check_ring_wish(config);
}

}  // namespace braid::comm
