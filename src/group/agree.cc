#include "group/agree.h"

#include <fmt/format.h>

#include <charconv>

namespace braid::group {

namespace {

// Before "OK" blobs comes '+', before a refusal '-', the code as one letter, and the message.
std::string encode(const Status& status, std::string_view payload) {
  if (status.ok()) return "+" + std::string(payload);
  return fmt::format("-{}{}", static_cast<char>('a' + static_cast<int>(status.code())),
                     status.message());
}

/// Whole numbers, which no rank's locale reads differently, and a blank behind each.
bool read_numbers(const std::string& text, std::span<int64_t> numbers) {
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int64_t& number : numbers) {
    const auto read = std::from_chars(at, end, number);
    if (read.ec != std::errc() || read.ptr == end || *read.ptr != ' ') return false;
    at = read.ptr + 1;
  }
  return at == end;
}

}  // namespace

Result<std::vector<std::string>> agree(Group& group, const std::string& topic, const Status& mine,
                                       std::string_view payload, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(std::vector<std::string> blobs,
                         group.exchange(topic, encode(mine, payload), deadline));
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].starts_with('+')) continue;
    const int code = blobs[r].size() > 1 ? blobs[r][1] - 'a' : 0;
    const bool is_known = code > 0 && code <= static_cast<int>(Code::kInternal);
    return Status(is_known ? static_cast<Code>(code) : Code::kInternal,
                  fmt::format("rank {}: {}", r,
                              blobs[r].size() > 2 ? blobs[r].substr(2) : "no reason given"));
  }
  for (std::string& blob : blobs) blob.erase(0, 1);
  return blobs;
}

Result<std::vector<std::vector<int64_t>>> exchange_numbers(Group& group, const std::string& topic,
                                                           std::span<const int64_t> own,
                                                           Deadline deadline) {
  std::string text;
  for (const int64_t number : own) text += fmt::format("{} ", number);
  BRAID_ASSIGN_OR_RETURN(const auto texts, group.exchange(topic, text, deadline));
  std::vector<std::vector<int64_t>> all(texts.size(), std::vector<int64_t>(own.size()));
  for (size_t r = 0; r < texts.size(); ++r)
    if (!read_numbers(texts[r], all[r]))
      return internal_error("{}: rank {} said '{}', expected {} numbers", topic, r, texts[r],
                            own.size());
  return all;
}

}  // namespace braid::group
