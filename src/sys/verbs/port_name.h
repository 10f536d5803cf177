// How users name a port: "mlx5_0", "mlx5_0:2", "mlx5_0:2:3".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "sys/verbs/gid.h"

namespace braid::sys::verbs {

struct PortName {
  std::string device;  // empty: any
  uint8_t port = 0;    // 0: any
  GidWish gid;

  /// Whether port `number` of `name` is meant.
  bool means(std::string_view name, uint8_t number) const {
    return (device.empty() || device == name) && (port == 0 || port == number);
  }
};

/// A numeric address becomes a wish for its GID on any port. invalid_argument for other text that
/// is no name.
Result<PortName> parse_port_name(std::string_view text);
/// "mlx5_0", or "mlx5_0:2" for another port than the first.
std::string port_name(std::string_view device, uint8_t number);

}  // namespace braid::sys::verbs
