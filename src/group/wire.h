// The control protocol's bytes: frames, and the messages in them.
//
//   frame           length u32 | type u8 | body (length bytes) | seal (16 bytes, none before the
//                   welcome): little-endian, length without the 5-byte head and the seal
//
//   store -> rank   challenge {magic, nonce}
//                   at once after accept: a client that meets a foreign service never says a word
//                   to it
//   rank -> store   hello {nonce, job id, rank, size, process, purpose, proof}
//   store -> rank   welcome {proof}   or   refusal {kind, text, proof or zeros}, then the end
//
//   From here on every frame is sealed, both ways (frame_seal.h).
//   store -> rank   joined {rank} / gone {rank}, until all are there: ready
//   both ways       blob {sequence, rank, topic, bytes}   one rank's part of one exchange
//                   news {code, rank, text}               a failure; the first one is everybody's
//                                                         fate
//                   left {rank}                           an orderly goodbye
//
// Everything here is a pure function of bytes, so that a fuzzer can call it. A length is compared
// with its limit before one byte is allocated for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::group {

inline constexpr uint32_t kMaxBlobBytes = 1u << 20;
inline constexpr uint32_t kMaxTopicBytes = 256;
inline constexpr uint32_t kMaxTextBytes = 4096;
inline constexpr uint32_t kFrameHeadBytes = 5;
/// The largest body a member may send: a blob, its topic and its numbers.
inline constexpr uint32_t kMaxBodyBytes = kMaxBlobBytes + kMaxTopicBytes + 64;
/// The largest body before the proof: a stranger gets no more memory than this.
inline constexpr uint32_t kMaxGreetingBytes = 1024;
inline constexpr uint32_t kMaxJobIdBytes = 256;
inline constexpr uint32_t kMaxRefusalBytes = 512;
inline constexpr int kMaxGroupSize = 4096;

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;
/// Another one for every process (sys::process_mark()).
using ProcessMark = std::array<std::byte, 16>;

enum class FrameType : uint8_t {
  kChallenge = 1,
  kHello,
  kWelcome,
  kRefusal,
  kJoined,
  kGone,
  kReady,
  kBlob,
  kNews,
  kLeft,
};
inline constexpr uint8_t kLastFrameType = static_cast<uint8_t>(FrameType::kLeft);

struct Frame {
  enum class State { kIncomplete, kComplete, kGarbage, kForged };
  State state = State::kIncomplete;
  FrameType type = FrameType::kChallenge;
  std::span<const std::byte> body;  // into the parsed bytes
  size_t frame_bytes = 0;           // head, body and seal, when complete
};

/// The first frame in `bytes`, with a seal of `seal_bytes` behind its body. Garbage: an unknown
/// type, or a body above `max_body_bytes`; nothing after it can be trusted.
Frame parse_frame(std::span<const std::byte> bytes, uint32_t max_body_bytes,
                  uint32_t seal_bytes = 0);
/// How long the frame at the beginning of `frames` is, which are whole and our own.
size_t first_frame_bytes(std::string_view frames);

struct Challenge {
  Nonce nonce{};
};
enum class Purpose : uint8_t {
  kJoin = 1,  // to be a member
  kServe,     // rank 0 of a job, which would serve a store of its own beside this one: it only asks
};
struct Hello {
  Nonce nonce{};
  std::string job_id;
  uint32_t rank = 0;
  uint32_t size = 0;
  ProcessMark process{};
  Purpose purpose = Purpose::kJoin;
  Proof proof{};
};
struct Welcome {
  Proof proof{};
};
enum class RefusalKind : uint8_t {
  kOtherJob = 1,  // unproved: look for another store
  kToken = 2,     // unproved: look for another store
  kDisagreement,  // proved: the group will never take this rank
  kRunning,  // unproved: a complete group is here, perhaps the one that this rank just left: ask
             // again
  kOwn,      // proved: to who would serve: this store is of the process that asks
};
struct Refusal {
  RefusalKind kind = RefusalKind::kToken;
  std::string text;
  Proof proof{};  // zeros unless the kind is a proved one
};
struct RankNote {  // joined, gone, left
  uint32_t rank = 0;
};
struct Blob {
  uint64_t sequence = 0;
  uint32_t rank = 0;
  std::string topic;
  std::string bytes;
};
struct News {
  Code code = Code::kInternal;
  uint32_t rank = 0;
  std::string text;
};

/// Whole frames, ready to send. Texts are cut to their limits.
std::string encode(const Challenge& challenge);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Refusal& refusal);
std::string encode(FrameType type, const RankNote& note);
std::string encode_ready();
std::string encode(const Blob& blob);
std::string encode(const News& news);

/// Bodies. invalid_argument when a body is short, long, or holds a value that no braid would send.
Result<Challenge> decode_challenge(std::span<const std::byte> body);
Result<Hello> decode_hello(std::span<const std::byte> body);
Result<Welcome> decode_welcome(std::span<const std::byte> body);
Result<Refusal> decode_refusal(std::span<const std::byte> body);
Result<RankNote> decode_rank_note(std::span<const std::byte> body);
Result<Blob> decode_blob(std::span<const std::byte> body);
Result<News> decode_news(std::span<const std::byte> body);

}  // namespace braid::group
