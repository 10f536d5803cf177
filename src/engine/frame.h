// The kinds of control frames, and one frame as it was received.
//
//   frame   body_bytes u32 | type u8 | sequence u64 | received u64 | body | seal 16
//
// `sequence` counts the frames of a session from 1; 0: not counted (greetings and beats).
// `received` is the last sequence that the sender has taken from the other side. The seal is there
// from the end of the handshake on: an HMAC under a key of this socket and direction over a count
// of frames and all before it, so that no frame can be altered, left out, repeated or played back.
#pragma once

#include <cstdint>
#include <string_view>

namespace braid::engine {

enum class FrameType : uint8_t {
  // Handshake (handshake.h).
  kHello = 1,
  kProof,
  // Both ways.
  kBeat,
  kLeave,  // an orderly goodbye
  // Source to target.
  kOpen,
  kRail,
  kWork,
  kLanded,
  kBoard,
  kLend,
  kPull,
  kFetch,
  kCancel,
  kFence,
  kGoneSeen,
  // Target to source.
  kAccept,
  kRailReady,
  kBoardReady,
  kPulled,
  kDone,
  kRefused,
  kCancelled,
  kFenced,
  kGone,
};
inline constexpr auto kLastFrameType = FrameType::kGone;

struct Frame {
  FrameType type = FrameType::kBeat;
  uint64_t sequence = 0;
  uint64_t received = 0;
  std::string_view body;  // into the socket's buffer: valid until the next fill()
};

inline constexpr uint32_t kFrameHeadBytes = 4 + 1 + 8 + 8;
inline constexpr uint32_t kSealBytes = 16;
/// Before the proof a stranger gets no more memory than this.
inline constexpr uint32_t kMostGreetingBytes = 512;
inline constexpr uint32_t kMostBodyBytes = 1 << 20;

}  // namespace braid::engine
