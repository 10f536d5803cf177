// What follows the welcome on a control connection. Bytes that nobody sealed never open, however they
// are cut into frames; what a member with a fault seals opens, and its body decodes or is refused.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "group/frame_seal.h"
#include "group/wire.h"

namespace {

using namespace braid::group;  // NOLINT: a test program of one folder

const std::string kKey(kSealKeyBytes, 'k');

std::span<std::byte> writable(std::string& text) { return std::as_writable_bytes(std::span(text)); }

// As a channel does: the first frame that does not open is the last that is looked at; here, all are.
void forge(std::string stream) {
  FrameSeal open(kKey, FrameSeal::Use::kOpen);
  std::span<std::byte> bytes = writable(stream);
  while (true) {
    const Frame frame = parse_frame(bytes, kMaxBodyBytes, kSealBytes);
    if (frame.state != Frame::State::kComplete) return;
    BRAID_CHECK(frame.frame_bytes == kFrameHeadBytes + frame.body.size() + kSealBytes &&
                    frame.frame_bytes <= bytes.size(),
                "frame of {} in {}", frame.frame_bytes, bytes.size());
    BRAID_CHECK(!open.open(bytes.first(frame.frame_bytes)), "a forged frame opened");
    bytes = bytes.subspan(frame.frame_bytes);
  }
}

void decode_all(std::span<const std::byte> body) {
  (void)decode_rank_note(body);
  (void)decode_blob(body);
  (void)decode_news(body);
}

// The same bytes as the body of a frame that is sealed well, and then with one of them changed.
void pass(const std::string& body, uint8_t change) {
  FrameSeal seal(kKey, FrameSeal::Use::kSeal), open(kKey, FrameSeal::Use::kOpen);
  std::string frame;
  for (int i = 0; i < 4; ++i) frame.push_back(static_cast<char>(body.size() >> (8 * i)));
  frame.push_back(static_cast<char>(FrameType::kBlob));
  frame += body;
  BRAID_CHECK(first_frame_bytes(frame) == frame.size(), "{} bytes", frame.size());
  std::string sealed;
  seal.seal(frame, sealed);
  std::string altered = sealed;
  altered[change % altered.size()] ^= static_cast<char>(change | 1);
  BRAID_CHECK(!open.open(writable(altered)), "an altered frame opened");
  BRAID_CHECK(open.open(writable(sealed)), "a sealed frame does not open");
  BRAID_CHECK(sealed.substr(0, frame.size()) == frame, "it came back as another one");
  decode_all(std::as_bytes(std::span(sealed)).subspan(kFrameHeadBytes, body.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  forge(bytes);
  pass(bytes, size > 0 ? data[size - 1] : 0);
  return 0;
}
