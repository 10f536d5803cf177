#include "group/agree.h"

#include <fmt/format.h>

namespace braid::group {

namespace {

// Before "OK" blobs comes '+', before a refusal '-', the code as one letter, and the message.
std::string encode(const Status& status, std::string_view payload) {
  if (status.ok()) return "+" + std::string(payload);
  return fmt::format("-{}{}", static_cast<char>('a' + static_cast<int>(status.code())),
                     status.message());
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

}  // namespace braid::group
