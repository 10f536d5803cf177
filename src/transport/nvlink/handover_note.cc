#include "transport/nvlink/handover_note.h"

#include <sstream>

#include "base/text.h"
#include "sys/fds/api.h"

namespace braid::nvlink {

std::string encode(const HandoverNote& note) {
  std::string text = fmt::format("{} {} {} {}", note.rank, note.first, note.count, note.why);
  return text.substr(0, sys::kMostTextOfLetter);
}

Result<HandoverNote> decode_note(const std::string& text, int rank, int size) {
  std::istringstream words(text);
  HandoverNote note;
  const bool is_read = static_cast<bool>(words >> note.rank >> note.first >> note.count);
  if (!is_read || note.rank < 0 || note.rank >= size || note.rank == rank)
    return internal_error("handover of memory: a letter says '{}'", printable(text));
  std::getline(words >> std::ws, note.why);
  note.why = printable(note.why, sys::kMostTextOfLetter);
  return note;
}

}  // namespace braid::nvlink
