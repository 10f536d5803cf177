// What health() and links say about a comm's GPU.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "comm/device/device.h"

namespace braid::comm {

/// {"ordinal", "ok", "why"; by the name of each link {"on", "how", "sent_slots", "received_slots"
/// (where they are counted), "shares": {op: share}}; "balance": {"on", "calls", "samples",
/// "windows", "moves", "trials", "shares": [{"op", "up_to_bytes", "tuned", "now", "moves"}]}}; the
/// shares of LinkSet::main() that were moved since tuning. Threads: any.
nlohmann::ordered_json gpu_health(const Device& device);
/// What bytes of GPU tensors can travel over, the base link first: [{"name", "kind", "rate_gbps",
/// "latency_ns", "source", "can_multicast", "state": "up" or "off", "how"}]. Threads: any.
nlohmann::ordered_json gpu_links(const Device& device);
/// One of them, of whatever memory, as far as facts go.
nlohmann::ordered_json json_of(const fabric::Link& facts);

}  // namespace braid::comm
