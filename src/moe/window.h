// Window: the memory of a rank that the others store rows into, and how they reach it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/status.h"
#include "moe/window_layout.h"

namespace braid::moe {

class Windows {
 public:
  /// Where something is to lie: in whose window, and at which offset.
  struct Place {
    int peer = 0;
    uint64_t offset = 0;
  };

  virtual ~Windows() = default;

  /// This rank's window, zero at first.
  virtual std::byte* own() = 0;
  /// The window of `peer` where it can be read here, else null. What the peer has put into it
  /// before a signal to this rank is there once that signal is.
  virtual const std::byte* window(int peer) const = 0;
  /// Room of `bytes` that is at `offset` of the peer's window, now or when the next signal() to it
  /// is: where it can be mapped it is the window itself. To be filled before the next call.
  virtual std::byte* room(int peer, uint64_t offset, uint64_t bytes) = 0;
  /// The same bytes at every one of `places`, which are of different peers; what has to cross a
  /// link crosses it once for all that share a node.
  virtual void put(std::span<const Place> places, std::span<const std::byte> bytes) {
    for (const Place& place : places)
      std::memcpy(room(place.peer, place.offset, bytes.size()), bytes.data(), bytes.size());
  }
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
