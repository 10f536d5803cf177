// What keeps a control connection between its two ends, once both have proved themselves: every
// frame is sealed with AES-256-GCM.
//
// Each direction has a key of its own, derived from the job's token and both nonces (proof.h), so
// no two connections share one. The nonce of a frame is its number in its direction; its head is
// authenticated along with its body. A frame that was altered, left out, repeated, held back,
// turned round or taken from another connection does not open. Whoever sits between can only cut,
// or be slow; he also sees how long frames are, and when they go.
//
// Sealed and not only signed, since frames carry what opens doors: keys of rdma memory, addresses
// of boxes for descriptors. It costs no more than a signature (docs/security.md has the figures).
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace braid::group {

/// Behind the body of every sealed frame.
inline constexpr uint32_t kSealBytes = 16;
inline constexpr size_t kSealKeyBytes = 32;

/// One direction of one connection, at one of its ends: seals, or opens, never both.
class FrameSeal {
 public:
  enum class Use { kSeal, kOpen };
  FrameSeal(std::string_view key, Use use);
  ~FrameSeal();
  FrameSeal(FrameSeal&&) noexcept;
  FrameSeal& operator=(FrameSeal&&) noexcept;

  /// Appends the next frame to `out`: `frame` is whole, head and body, in the clear.
  void seal(std::string_view frame, std::string& out);
  /// Opens the next frame in place: head, body and seal. False when it is not the one that the
  /// other end sealed next; the body is then worth nothing, and the number stays.
  bool open(std::span<std::byte> frame);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid::group
