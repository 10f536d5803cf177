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
