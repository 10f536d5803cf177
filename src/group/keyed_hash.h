// HMAC-SHA256, the one primitive behind proofs, sealed frames and descriptors that cannot be
// altered. Keys of different uses are derived by a label each, so that what one use signs is no
// answer in another.
//
// Threads: a KeyedHash belongs to one; hmac() any.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace braid::group {

using Digest = std::array<std::byte, 32>;

/// HMAC-SHA256 of `text` under `key`.
Digest hmac(std::string_view key, std::string_view text);
/// The same as a key for derived uses.
std::string derive_key(std::string_view key, std::string_view label);
/// Takes the same time wherever the first difference lies.
bool is_equal(std::span<const std::byte> a, std::span<const std::byte> b);

/// Many digests under one key: the key is set up once, which is most of the cost of a short text.
class KeyedHash {
 public:
  explicit KeyedHash(std::string_view key);
  ~KeyedHash();
  KeyedHash(KeyedHash&&) noexcept;
  KeyedHash& operator=(KeyedHash&&) noexcept;

  /// Of `head` followed by `body`.
  Digest digest(std::string_view head, std::string_view body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid::group
