// What letters of the handover say: a box takes them from any process of this user. Any bytes read as
// a note of another rank, which is written and read back alike, or as a Status.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "transport/nvlink/handover_note.h"

using namespace braid::nvlink;  // NOLINT: a test program of one folder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const int rank : {0, 3}) {
    const auto note = decode_note(text, rank, 8);
    if (!note.ok()) continue;
    BRAID_CHECK(note->rank >= 0 && note->rank < 8 && note->rank != rank, "rank {}", note->rank);
    const auto again = decode_note(encode(note.value()), rank, 8);
    BRAID_CHECK(again.ok() && encode(again.value()) == encode(note.value()),
                "'{}' does not read back", encode(note.value()));
  }
  return 0;
}
