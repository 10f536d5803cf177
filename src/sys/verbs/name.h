// What an endpoint tells its peer so that both can connect their queue pairs: which port it is at,
// which queue pairs it has made, and where their packet numbers begin.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "sys/verbs/gid.h"

namespace braid::sys::verbs {

struct QueuePairName {
  uint32_t number = 0;        // 24 bits, by which packets find the queue pair
  uint32_t first_packet = 0;  // 24 bits, of the first packet that its owner sends
  friend bool operator==(const QueuePairName&, const QueuePairName&) = default;
};

struct EndpointName {
  Gid gid = {};
  GidType gid_type = GidType::kInfiniband;
  uint16_t lid = 0;       // InfiniBand's local address; 0 on Ethernet
  uint8_t mtu = 0;        // of the port: enum ibv_mtu, 1 (256 bytes) to 5 (4096)
  uint8_t max_reads = 0;  // that this side answers at once
  QueuePairName data, messages;
  friend bool operator==(const EndpointName&, const EndpointName&) = default;
};

std::string encode(const EndpointName& name);
/// invalid_argument for anything that encode() cannot have made: the bytes come from a peer.
Result<EndpointName> decode(std::string_view bytes);

}  // namespace braid::sys::verbs
