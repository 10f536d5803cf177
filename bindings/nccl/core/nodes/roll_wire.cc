#include "bindings/nccl/core/nodes/roll_wire.h"

#include <algorithm>

namespace braid::nccl {

namespace {

constexpr size_t kMostWhy = 512;
constexpr int64_t kMostPatience_ns = int64_t{7} * 24 * 3600 * 1'000'000'000;

void put(std::string& to, uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

void put_text(std::string& to, const std::string& text, size_t most) {
  const size_t kept = std::min(text.size(), most);
  put(to, kept, 4);
  to.append(text, 0, kept);
}

/// Reads on; whatever is asked for beyond the end is zero or empty, and is_whole() false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  uint64_t number(size_t num_bytes) {
    if (!has(num_bytes)) return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < num_bytes; ++i) value |= static_cast<uint64_t>(rest_[i]) << (8 * i);
    rest_ = rest_.subspan(num_bytes);
    return value;
  }
  std::string text(size_t most) {
    const size_t bytes = number(4);
    if (bytes > most || !has(bytes)) return is_good_ = false, "";
    std::string read(reinterpret_cast<const char*>(rest_.data()), bytes);
    rest_ = rest_.subspan(bytes);
    return read;
  }
  bool is_good() const { return is_good_; }
  bool is_whole() const { return is_good_ && rest_.empty(); }

 private:
  bool has(size_t bytes) { return is_good_ = is_good_ && bytes <= rest_.size(); }
  std::span<const std::byte> rest_;
  bool is_good_ = true;
};

Status malformed(const char* what, size_t bytes) {
  return invalid_argument("roll: a malformed {} of {} bytes", what, bytes);
}

}  // namespace

std::string encode(const Coming& coming) {
  std::string bytes;
  put(bytes, coming.rank, 4);
  put(bytes, coming.num_ranks, 4);
  put(bytes, static_cast<uint64_t>(std::min(coming.patience_ns, kMostPatience_ns)), 8);
  put_text(bytes, coming.words, kMostWords);
  return bytes;
}

Result<Coming> decode_coming(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Coming coming;
  coming.rank = static_cast<uint32_t>(in.number(4));
  coming.num_ranks = static_cast<uint32_t>(in.number(4));
  coming.patience_ns = static_cast<int64_t>(in.number(8));
  coming.words = in.text(kMostWords);
  const bool is_sane = coming.num_ranks >= 2 && coming.num_ranks <= kMostNodeRanks &&
                       coming.rank < coming.num_ranks && coming.patience_ns >= 0 &&
                       coming.patience_ns <= kMostPatience_ns;
  if (!in.is_whole() || !is_sane) return malformed("coming", bytes.size());
  return coming;
}

std::string encode(const Met& met) {
  std::string bytes;
  put_text(bytes, met.why_not, kMostWhy);
  put(bytes, met.words.size(), 4);
  for (const std::string& words : met.words) put_text(bytes, words, kMostWords);
  return bytes;
}

Result<Met> decode_met(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Met met;
  met.why_not = in.text(kMostWhy);
  const uint64_t num = in.number(4);
  if (num > kMostNodeRanks + 1) return malformed("answer", bytes.size());
  for (uint64_t i = 0; i < num && in.is_good(); ++i) met.words.push_back(in.text(kMostWords));
  if (!in.is_whole() || met.all_came() != (num > 0)) return malformed("answer", bytes.size());
  return met;
}

}  // namespace braid::nccl
