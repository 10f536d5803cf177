// What health() says about a comm's GPU.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "comm/device/device.h"

namespace braid::comm {

/// {"ordinal", "ok", "why"; by the name of each link beside NVLink {"on", "how", "sent_slots",
/// "received_slots" (where they are counted), "shares": {op: share}}; "balance": {"on", "calls", "samples", "windows", "moves", "trials",
/// "shares": [{"op", "up_to_bytes", "tuned", "now", "moves"}]}}; the shares of the PCIe link that
/// were moved since tuning. Threads: any.
nlohmann::ordered_json gpu_health(const Device& device);

}  // namespace braid::comm
