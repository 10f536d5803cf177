#include "sys/net/own_address.h"

#include <sys/socket.h>

#include <optional>

#include "sys/net/api.h"

namespace braid::sys {

namespace {

// Kept for documentation (RFC 5737): no host has it, but a route leads there.
constexpr std::string_view kElsewhere = "192.0.2.1";

// A datagram socket that is connected only chooses its interface.
std::optional<std::string> address_to(const Endpoint& there) {
  const Fd fd(::socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open() || ::connect(fd.get(), there.address(), there.length()) != 0)
    return std::nullopt;
  const auto here = local_endpoint(fd.get());
  if (!here.ok() || here->is_loopback()) return std::nullopt;
  return here->host();
}

}  // namespace

std::string own_address_towards(std::string_view host) {
  constexpr uint16_t kAnyPort = 9;
  for (const std::string_view target : {host, kElsewhere}) {
    const auto places = resolve(target, kAnyPort);
    if (!places.ok()) continue;
    for (const Endpoint& there : places.value())
      if (auto address = address_to(there)) return *address;
  }
  return "127.0.0.1";
}

}  // namespace braid::sys
