// One port of a device: found by name or address, opened, and asked what it can do.
#pragma once

#include <string>
#include <vector>

#include "sys/fabric/api.h"
#include "sys/verbs/gid.h"
#include "sys/verbs/library.h"

namespace braid::sys::verbs {

struct Port {
  std::string name;  // "mlx5_0", "mlx5_0:2" for another port than the first
  uint8_t number = 1;
  Context context;
  ibv_device_attr device = {};
  ibv_port_attr attributes = {};
  std::vector<GidEntry> gids;  // those that are in use

  bool is_active() const { return attributes.state == IBV_PORT_ACTIVE; }
  bool is_ethernet() const { return attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
  /// GB/s, of the lanes together.
  double rate_gbps() const;
};

/// All ports of all devices that can be opened.
std::vector<Port> open_ports(const Library& library);

struct ChosenPort {
  Port port;
  GidEntry gid;
};
/// `wanted` is a numeric address, "mlx5_0", "mlx5_0:PORT", "mlx5_0:PORT:GID INDEX", or empty for
/// the first active port. unavailable names what is there instead.
Result<ChosenPort> choose_port(const Library& library, const std::string& wanted);

}  // namespace braid::sys::verbs
