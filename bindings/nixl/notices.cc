#include "notices.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace braid::nixl {
namespace {

constexpr size_t kPlaceAt = 1 + sizeof(uint64_t);
constexpr size_t kHeadBytes = kPlaceAt + sizeof(uint32_t);
constexpr size_t kMostPartBytes = engine::kMostMessageBytes - kHeadBytes;

}  // namespace

std::vector<std::string> cut(std::string_view notification, uint64_t number) {
  std::vector<std::string> out;
  uint32_t place = 0;
  do {
    const std::string_view part = notification.substr(0, kMostPartBytes);
    notification.remove_prefix(part.size());
    std::string text(1, static_cast<char>(notification.empty()));
    text.append(reinterpret_cast<const char*>(&number), sizeof number);
    text.append(reinterpret_cast<const char*>(&place), sizeof place).append(part);
    out.push_back(std::move(text));
    ++place;
  } while (!notification.empty());
  return out;
}

std::optional<std::string> Joiner::add(const engine::Message& part) {
  if (part.bytes.size() < kHeadBytes) {
    log::warn("nixl", "a notification of '{}' has {} bytes, no part of NIXL's", part.sender,
              part.bytes.size());
    return {};
  }
  const bool is_last = part.bytes[0] != 0;
  uint64_t number = 0;
  uint32_t place = 0;
  std::memcpy(&number, part.bytes.data() + 1, sizeof number);
  std::memcpy(&place, part.bytes.data() + kPlaceAt, sizeof place);
  const std::string_view bytes = std::string_view(part.bytes).substr(kHeadBytes);
  auto found = std::find_if(begun_.begin(), begun_.end(), [&](const Begun& begun) {
    return begun.number == number && begun.sender == part.incarnation;
  });
  if (found == begun_.end()) {
    if (place != 0) return {};  // its beginning was dropped
    if (is_last) return std::string(bytes);
    if (begun_.size() == kMostBegun) {
      log::warn("nixl", "more than {} long notifications at once: one of them is dropped",
                kMostBegun);
      begun_.pop_front();
    }
    begun_.push_back({part.incarnation, number, 1, std::string(bytes)});
    return {};
  }
  if (place != found->next) {
    begun_.erase(found);
    return {};
  }
  ++found->next;
  found->bytes += bytes;
  if (!is_last) return {};
  std::string whole = std::move(found->bytes);
  begun_.erase(found);
  return whole;
}

}  // namespace braid::nixl
