// Text that people typed: cutting it at separators, quoting it safely in a message, finding the
// name that was meant. Everything here takes bytes from outside (environment, peers, files) and
// must stand any of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// `text` without leading and trailing spaces and tabs.
std::string_view trim(std::string_view text) noexcept;
/// The trimmed fields of `text` between `separator`s; an empty text has none, "a,,b" has three.
std::vector<std::string_view> split(std::string_view text, char separator);
/// `text` fit for one log line: control and non-ASCII bytes become '?', and more than `max_chars`
/// end in "...".
std::string printable(std::string_view text, size_t max_chars = 64);
/// `text` with a '?' for each byte that belongs to no well-formed UTF-8 character: what peers send as
/// words goes into messages, and Python takes no others.
std::string valid_utf8(std::string_view text);
/// Levenshtein distance: how many single-character edits make `b` of `a`.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace braid
