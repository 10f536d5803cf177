// BRAID_LINKS, BRAID_RDMA_ADDRS and BRAID_PACE, a line each: a Status on one printable line, or
// links with unique names.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/check.h"
#include "comm/link_spec.h"

namespace {

std::string_view take_line(std::string_view* text) {
  const size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  *text = end == std::string_view::npos ? std::string_view() : text->substr(end + 1);
  return line;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  braid::Config config;
  for (const char* name : {"BRAID_LINKS", "BRAID_RDMA_ADDRS", "BRAID_PACE"})
    if (!config.set(name, take_line(&text)).ok()) return 0;
  const auto specs = braid::comm::link_specs(config, braid::comm::Hosts(size % 3));
  if (!specs.ok()) {
    BRAID_CHECK(!specs.status().message().empty(), "no message");
    return 0;
  }
  std::set<std::string> names;
  for (const auto& link : specs.value().links)
    BRAID_CHECK(names.insert(link.name).second, "two links {}", link.name);
  return 0;
}
