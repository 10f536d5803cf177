#include "sys/verbs/port.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "sys/error_text.h"
#include "sys/verbs/port_name.h"

namespace braid::sys::verbs {
namespace {

std::vector<GidEntry> read_gids(const Library& library, ibv_context* context, uint8_t number,
                                const ibv_port_attr& port) {
  std::vector<GidEntry> gids;
  for (uint32_t index = 0; index < static_cast<uint32_t>(port.gid_tbl_len); ++index) {
    ibv_gid_entry found{};
    // ENODATA for a place in the table that is not in use.
    if (library.query_gid_ex(context, number, index, &found, 0, sizeof found) != 0) continue;
    GidEntry entry{.index = index, .type = static_cast<GidType>(found.gid_type)};
    std::copy_n(found.gid.raw, entry.gid.size(), entry.gid.begin());
    gids.push_back(entry);
  }
  return gids;
}

bool open_port(const Library& library, ibv_device* device, uint8_t number, Port& port) {
  port.name = port_name(library.get_device_name(device), number);
  port.number = number;
  port.context = Context(library, library.open_device(device));
  ibv_context* context = port.context.get();
  if (context == nullptr || library.query_device(context, &port.device) != 0 ||
      library.query_port(context, number, &port.attributes) != 0) {
    log::debug("sys", "verbs: {} cannot be opened: {}", port.name, error_text(errno));
    return false;
  }
  port.gids = read_gids(library, context, number, port.attributes);
  return true;
}

double lane_gbits(uint8_t speed) {
  switch (speed) {  // as in InfiniBand's PortInfo
    case 1: return 2.5;
    case 2: return 5;
    case 4: return 10;
    case 8: return 10.3125;
    case 16: return 14.0625;
    case 32: return 25.78125;
    case 64: return 53.125;
    case 128: return 106.25;
    default: return 0;
  }
}

int lanes(uint8_t width) {
  switch (width) {
    case 1: return 1;
    case 2: return 4;
    case 4: return 8;
    case 8: return 12;
    case 16: return 2;
    default: return 0;
  }
}

std::string list_of(const std::vector<Port>& ports) {
  std::string out;
  for (const Port& port : ports)
    out += fmt::format("{}{}{}", out.empty() ? "" : ", ", port.name,
                       port.is_active() ? "" : " (not active)");
  return out.empty() ? "no device" : out;
}

}  // namespace

double Port::rate_gbps() const {
  return lane_gbits(attributes.active_speed) * lanes(attributes.active_width) / 8;
}

std::vector<Port> open_ports(const Library& library) {
  std::vector<Port> ports;
  int num_devices = 0;
  ibv_device** devices = library.get_device_list(&num_devices);
  for (int i = 0; devices != nullptr && i < num_devices; ++i) {
    // iWARP connects by its own protocol over TCP, and EFA has no reliable connections.
    if (devices[i]->transport_type != IBV_TRANSPORT_IB) continue;
    int num_ports = 1;  // how many there are, the first one says
    for (int number = 1; number <= num_ports; ++number) {
      Port port;
      if (!open_port(library, devices[i], static_cast<uint8_t>(number), port)) break;
      num_ports = port.device.phys_port_cnt;
      ports.push_back(std::move(port));
    }
  }
  if (devices != nullptr) library.free_device_list(devices);
  return ports;
}

Result<ChosenPort> choose_port(const Library& library, const std::string& wanted) {
  BRAID_ASSIGN_OR_RETURN(const PortName name, parse_port_name(wanted));
  std::vector<Port> ports = open_ports(library);
  Status why;
  for (Port& port : ports) {
    const std::string_view device = library.get_device_name(port.context->device);
    if (!name.means(device, port.number) || !port.is_active()) continue;
    Result<GidEntry> gid = choose_gid(port.gids, name.gid);
    if (gid.ok()) return ChosenPort{std::move(port), gid.value()};
    why = gid.status().with_context("verbs " + port.name);
  }
  if (!why.ok() && !name.device.empty()) return why;
  return unavailable("verbs: an active port \"{}\" was asked for, this machine has {}", wanted,
                     list_of(ports));
}

}  // namespace braid::sys::verbs
