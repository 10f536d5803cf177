// Text that claims to be a machine: a Status, or facts that print and read back the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "fabric/json.h"

namespace {

template <typename Parse>
void round_trip(std::string_view text, Parse parse) {
  const auto facts = parse(text);
  if (!facts.ok()) return;
  const std::string printed = braid::fabric::to_json(facts.value());
  const auto again = parse(printed);
  BRAID_CHECK(again.ok(), "{}", again.status().to_string());
  BRAID_CHECK(braid::fabric::to_json(again.value()) == printed, "prints another text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  round_trip(text, braid::fabric::parse_fabric);
  round_trip(text, braid::fabric::parse_node);
  return 0;
}
