#include "base/text.h"

#include <algorithm>
#include <numeric>

namespace braid {

std::string_view trim(std::string_view text) noexcept {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> fields;
  if (trim(text).empty()) return fields;
  for (;;) {
    const size_t end = text.find(separator);
    fields.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

std::string printable(std::string_view text, size_t max_chars) {
  std::string line(text.substr(0, max_chars));
  for (char& c : line)
    if (c < ' ' || c > '~') c = '?';
  if (text.size() > max_chars) line += "...";
  return line;
}

namespace {
bool is_between(char c, int least, int most) {
  const int byte = static_cast<unsigned char>(c);
  return byte >= least && byte <= most;
}

/// Bytes of the character that `text` begins with; 0: it is none. Unicode's table of well-formed
/// sequences: no overlong ones, no surrogates, nothing above U+10FFFF.
size_t character_bytes(std::string_view text) {
  struct Lead {
    int first, last;                // of the first byte
    int second_least, second_most;  // of the second
    size_t bytes;
  };
  constexpr Lead kLeads[] = {
      {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
      {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
      {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  for (const Lead& lead : kLeads) {
    if (!is_between(text[0], lead.first, lead.last)) continue;
    if (lead.bytes == 1) return 1;
    if (text.size() < lead.bytes || !is_between(text[1], lead.second_least, lead.second_most))
      return 0;
    const std::string_view rest = text.substr(2, lead.bytes - 2);
    const bool is_whole =
        std::all_of(rest.begin(), rest.end(), [](char c) { return is_between(c, 0x80, 0xbf); });
    return is_whole ? lead.bytes : 0;
  }
  return 0;
}
}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    if (bytes == 0)
      out += '?';
    else
      out += text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // One row of the usual table is enough: `diagonal` keeps the one cell that the row has already
  // overwritten.
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace braid
