// Names of verbs endpoints: a Status, or a name that encodes to the very bytes it came from.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "sys/verbs/name.h"
#include "sys/verbs/port_name.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto name = braid::sys::verbs::decode(bytes);
  if (name.ok())
    BRAID_CHECK(braid::sys::verbs::encode(name.value()) == bytes, "another name came back");
  const auto port = braid::sys::verbs::parse_port_name(bytes);
  if (!port.ok()) BRAID_CHECK(!port.status().message().empty(), "no message");
  return 0;
}
