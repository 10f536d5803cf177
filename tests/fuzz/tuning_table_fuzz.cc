// A tuning cache file of any content: a Status, or a table whose text reads back the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using braid::plan::TuningTable;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto table = TuningTable::parse(text, "fuzz");
  if (!table.ok()) return 0;
  BRAID_CHECK(table.value().fabric_hash() == "fuzz", "a table of fabric '{}'",
              table.value().fabric_hash());
  const std::string printed = table.value().to_json();
  const auto again = TuningTable::parse(printed, "fuzz");
  BRAID_CHECK(again.ok(), "{}", again.status().to_string());
  BRAID_CHECK(again.value().to_json() == printed, "prints another text");
  return 0;
}
