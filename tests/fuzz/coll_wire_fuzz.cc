// Tags, entries and announcements from a peer: a Status, or a value that encodes to something that decodes to
// it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "coll/wire.h"

namespace {

void check_tag(std::span<const std::byte> bytes) {
  braid::transport::PieceTag words;
  if (bytes.size() < sizeof(words.words)) return;
  std::memcpy(words.words.data(), bytes.data(), sizeof(words.words));
  const auto tag = braid::coll::decode_tag(words);
  if (!tag.ok()) return;
  const auto again = braid::coll::decode_tag(braid::coll::encode_tag(tag.value()));
  BRAID_CHECK(again.ok(), "{}", again.status().to_string());
  BRAID_CHECK(again.value().epoch == tag.value().epoch && again.value().cell == tag.value().cell,
              "another tag");
  BRAID_CHECK(again.value().kind == tag.value().kind && again.value().block == tag.value().block,
              "another tag");
}

void check_entry(std::span<const std::byte> bytes) {
  const auto entry = braid::coll::decode_entry(bytes);
  if (!entry.ok()) return;
  BRAID_CHECK(!braid::coll::to_words(entry.value().signature).empty(), "no words");
  const auto once = braid::coll::encode_entry(entry.value());
  const auto again = braid::coll::decode_entry(once);
  BRAID_CHECK(again.ok(), "{}", again.status().to_string());
  BRAID_CHECK(braid::coll::encode_entry(again.value()) == once, "does not read back");
}

void check_announcement(std::span<const std::byte> bytes) {
  const auto said = braid::coll::decode_announcement(bytes);
  if (!said.ok()) return;
  const auto once = braid::coll::encode_announcement(said.value());
  BRAID_CHECK(std::equal(once.begin(), once.end(), bytes.begin(), bytes.end()),
              "does not read back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check_tag(bytes);
  check_entry(bytes);
  check_announcement(bytes);
  return 0;
}
