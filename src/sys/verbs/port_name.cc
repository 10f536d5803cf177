#include "sys/verbs/port_name.h"

#include <charconv>
#include <vector>

namespace braid::sys::verbs {
namespace {

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t colon = text.find(':'); colon != text.npos; colon = text.find(':')) {
    parts.push_back(text.substr(0, colon));
    text.remove_prefix(colon + 1);
  }
  parts.push_back(text);
  return parts;
}

template <typename Number>
bool parse(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

Result<PortName> parse_port_name(std::string_view text) {
  PortName name;
  if (text.empty()) return name;
  // First of all: an IPv6 address has colons, too.
  if (name.gid.gid = gid_of_address(text); name.gid.gid) return name;
  const std::vector<std::string_view> parts = split(text);
  name.device = parts[0];
  uint32_t index = 0;
  const bool is_sound = !name.device.empty() && parts.size() <= 3 &&
                        (parts.size() < 2 || (parse(parts[1], name.port) && name.port != 0)) &&
                        (parts.size() < 3 || parse(parts[2], index));
  if (!is_sound)
    return invalid_argument(
        "verbs: \"{}\" is no port: write a numeric address, or a device like mlx5_0, mlx5_0:PORT "
        "or mlx5_0:PORT:GID_INDEX",
        text);
  if (parts.size() == 3) name.gid.index = index;
  return name;
}

std::string port_name(std::string_view device, uint8_t number) {
  return number == 1 ? std::string(device) : fmt::format("{}:{}", device, number);
}

}  // namespace braid::sys::verbs
