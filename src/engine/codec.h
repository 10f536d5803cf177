// Numbers and texts as bytes and back: little-endian, every text behind its length. A Reader never
// reads past its end and never allocates more than there are bytes; one that was asked for more
// than it had stays bad, so a decoder asks once, at its end.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/text.h"

namespace braid::engine {

/// The bytes of an array of them.
template <size_t kCount>
std::string_view view(const std::array<char, kCount>& bytes) {
  return {bytes.data(), bytes.size()};
}

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

class Writer {
 public:
  template <typename T>
  Writer& number(T value) {
    static_assert(std::is_integral_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  /// An array of structures of uint64_t, as they lie.
  template <typename T>
  Writer& array(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
    out_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return *this;
  }
  Writer& raw(std::string_view bytes) {
    out_.append(bytes);
    return *this;
  }
  Writer& text(std::string_view bytes) {
    return number(static_cast<uint32_t>(bytes.size())).raw(bytes);
  }
  std::string take() { return std::move(out_); }
  const std::string& bytes() const { return out_; }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_integral_v<T>);
    const std::string_view bytes = raw(sizeof(T));
    T value = 0;
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  template <typename T>
  void array(std::span<T> out) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
    const std::string_view bytes = raw(out.size_bytes());
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  }
  /// `bytes` of what is left; empty and bad when there are fewer.
  std::string_view raw(size_t bytes) {
    if (bytes > rest_.size()) is_good_ = false;
    if (!is_good_) return {};
    const std::string_view out = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return out;
  }
  std::string_view text() { return raw(number<uint32_t>()); }
  /// A text that people read.
  std::string words() { return valid_utf8(text()); }
  size_t left() const { return rest_.size(); }
  bool is_good() const { return is_good_; }
  /// Good, and nothing follows.
  bool is_whole() const { return is_good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool is_good_ = true;
};

}  // namespace braid::engine
