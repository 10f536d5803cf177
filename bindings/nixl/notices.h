// NIXL's notifications as messages of the engine, which hold 64 KiB and must not be empty: each has
// a head, and a long one comes in parts.
//
//   is_last u8 | number u64 | place u32, from 0 | bytes
//
// Parts of one notification have one number, come in order, and maybe between those of another one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/mailbox.h"

namespace braid::nixl {

/// `number` is another one for each notification of this process.
std::vector<std::string> cut(std::string_view notification, uint64_t number);

/// Threads: one at a time.
class Joiner {
 public:
  /// The whole notification when `part` was its last; nothing when more is to come, or when it is
  /// no part of one.
  std::optional<std::string> add(const engine::Message& part);

 private:
  struct Begun {
    engine::Incarnation sender{};
    uint64_t number = 0;
    uint32_t next = 0;  // place of the part that follows
    std::string bytes;
  };
  // Whoever dies in the middle of one leaves it here; the oldest is dropped, and what comes of it later.
  static constexpr size_t kMostBegun = 64;
  std::deque<Begun> begun_;
};

}  // namespace braid::nixl
