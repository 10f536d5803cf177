// The cached shares of a link between GPUs: any bytes read as shares within their bounds, which are
// written and read back alike, or as a Status.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "coll/device/share_text.h"

using namespace braid::coll::device;  // NOLINT: a test program of one folder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto shares = parse_shares(text, "");
  if (!shares.ok()) return 0;
  for (const braid::comm::TunedShare& share : shares->of_op)
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, share.short_bytes, share.long_bytes,
                                 (share.short_bytes + share.long_bytes) / 2, UINT64_MAX}) {
      const double at = share.at(bytes);
      BRAID_CHECK(at >= -1e-9 && at <= 1 + 1e-9, "a share of {} of {} bytes", at, bytes);
    }
  const std::string written = shares_to_json("key", shares.value());
  const auto again = parse_shares(written, "key");
  BRAID_CHECK(again.ok() && shares_to_json("key", again.value()) == written, "does not read back");
  BRAID_CHECK(!parse_shares(written, "another").ok(), "it is of another key");
  return 0;
}
