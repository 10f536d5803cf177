// What an engine reads from another one: bodies of control frames, and descriptors that somebody
// shipped. Every body decodes to something that encodes to the same bytes, or to a Status; nothing
// is read past the end or allocated for lengths that are not there.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/descriptor.h"
#include "engine/frames.h"
#include "group/keyed_hash.h"

namespace {

using namespace braid::engine;  // NOLINT: a test program of one folder

template <typename Decode>
void round_trip(std::string_view body, Decode decode) {
  auto message = decode(body);
  if (!message.ok()) return;
  const std::string text = encode(*message);
  auto again = decode(text);
  BRAID_CHECK(again.ok() && encode(*again) == text, "{} bytes do not read back", text.size());
}

// The signature is made here: a stranger cannot, and what a member with a fault writes is read, too.
void read_descriptors(std::string_view body) {
  static const Secret kSecret("token");
  for (const std::string_view magic : {"BRDA", "BRDR"}) {
    std::string bytes(magic);
    bytes.append("\1\0", 2).append(kSecret.job().data(), kSecret.job().size()).append(body);
    const braid::group::Digest digest = braid::group::hmac(kSecret.descriptor_key(), bytes);
    bytes.append(reinterpret_cast<const char*>(digest.data()), 16);
    auto address = decode_address(bytes, kSecret);
    if (address.ok())
      BRAID_CHECK(decode_address(encode(*address, kSecret), kSecret).ok(), "does not read back");
    auto region = decode_region(bytes, kSecret);
    if (region.ok())
      BRAID_CHECK(decode_region(encode(**region, kSecret), kSecret).ok(), "does not read back");
  }
  (void)decode_region(body, kSecret);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  round_trip(body, decode_open);
  round_trip(body, decode_accept);
  round_trip(body, decode_rail_call);
  round_trip(body, decode_rail_ready);
  round_trip(body, decode_work);
  round_trip(body, decode_landed);
  round_trip(body, decode_board_offer);
  round_trip(body, decode_board_answer);
  round_trip(body, decode_loan);
  round_trip(body, decode_pull);
  round_trip(body, decode_pulled);
  round_trip(body, decode_transfer_note);
  round_trip(body, decode_fence);
  round_trip(body, decode_region_note);
  round_trip(body, decode_done);
  round_trip(body, decode_refused);
  read_descriptors(body);
  return 0;
}
