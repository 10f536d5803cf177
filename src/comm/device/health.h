// What health() says about a comm's GPU.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "comm/device/device.h"

namespace braid::comm {

/// {"ordinal", "ok", "why", "rdma": {"on", "how", "sent_slots", "received_slots", "shares": {op:
/// share}}, "balance": {"on", "calls", "samples", "windows", "moves", "trials",
/// "shares": [{"op", "up_to_bytes", "tuned", "now", "moves"}]}}; the shares of the PCIe link that
/// were moved since tuning. Threads: any.
nlohmann::ordered_json gpu_health(const Device& device);

}  // namespace braid::comm
