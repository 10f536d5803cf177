// Bytes on the control connection, before and after the proof: the frame parser never reads past
// them, never asks for more than its limit, and every body it passes on decodes to something that
// encodes again, or to a Status.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "group/wire.h"

namespace {

using namespace braid::group;  // NOLINT: a test program of one folder
using Bytes = std::span<const std::byte>;

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// What decodes must encode into one whole frame that decodes to the same bytes.
template <typename Decode, typename Encode>
void round_trip(Bytes body, Decode decode, Encode encode_again) {
  const auto message = decode(body);
  if (!message.ok()) return;
  const std::string text = encode_again(message.value());
  const Frame frame = parse_frame(bytes_of(text), kMaxBodyBytes);
  BRAID_CHECK(frame.state == Frame::State::kComplete && frame.frame_bytes == text.size(),
              "{} bytes", text.size());
  const auto again = decode(frame.body);
  BRAID_CHECK(again.ok() && encode_again(again.value()) == text, "does not read back");
}

void decode_all(Bytes body) {
  const auto same = [](const auto& message) { return encode(message); };
  round_trip(body, decode_challenge, same);
  round_trip(body, decode_hello, same);
  round_trip(body, decode_welcome, same);
  round_trip(body, decode_refusal, same);
  round_trip(body, decode_rank_note,
             [](const RankNote& note) { return encode(FrameType::kJoined, note); });
  round_trip(body, decode_blob, same);
  round_trip(body, decode_news, same);
}

void parse_stream(Bytes bytes, uint32_t max_body_bytes) {
  while (true) {
    const Frame frame = parse_frame(bytes, max_body_bytes);
    if (frame.state != Frame::State::kComplete) return;
    BRAID_CHECK(frame.body.size() <= max_body_bytes, "body of {}", frame.body.size());
    BRAID_CHECK(frame.frame_bytes == frame.body.size() + kFrameHeadBytes, "frame of {}",
                frame.frame_bytes);
    BRAID_CHECK(frame.frame_bytes <= bytes.size(), "frame of {} in {}", frame.frame_bytes,
                bytes.size());
    decode_all(frame.body);
    bytes = bytes.subspan(frame.frame_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  parse_stream(bytes, kMaxGreetingBytes);
  parse_stream(bytes, kMaxBodyBytes);
  decode_all(bytes);
  return 0;
}
