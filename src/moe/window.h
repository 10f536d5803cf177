// Window: the memory of a rank that the others store rows into, and how they reach it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "moe/window_layout.h"

namespace braid::moe {

class Windows {
 public:
  virtual ~Windows() = default;

  /// This rank's window, zero at first.
  virtual std::byte* own() = 0;
  /// Room of `bytes` that is at `offset` of the peer's window, now or when the next signal() to it
  /// is: where it can be mapped it is the window itself. Valid until that signal.
  virtual std::byte* room(int peer, uint64_t offset, uint64_t bytes) = 0;
  /// Writes `words` (at most kNumberOffset bytes) and then `number` into a line of the peer's
  /// window. Who reads the number with acquire() sees all that was put in rooms before.
  virtual void signal(int peer, uint64_t line, std::span<const std::byte> words,
                      uint64_t number) = 0;
  /// The number of a line of this rank's own window.
  virtual uint64_t acquire(uint64_t line) const = 0;
  /// Nothing more is taken from the peer or sent to it.
  virtual void cut(int peer) = 0;
  /// ok, or why nothing can reach the peer.
  virtual Status health(int peer) const = 0;
};

}  // namespace braid::moe
