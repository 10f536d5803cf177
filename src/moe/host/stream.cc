#include "moe/host/stream.h"

#include <algorithm>
#include <cstring>

namespace braid::moe {

namespace {
constexpr uint64_t kMostPlaces = 64;  // ranks of a group
}  // namespace

// Adds to head_ what it still lacks; once it is whole, places_ and left_ are set.
Status StreamReader::take_head(std::span<const std::byte>& piece, const Target& target) {
  StreamRecord record;
  uint64_t wanted = sizeof record;
  if (head_.size() >= sizeof record) {
    std::memcpy(&record, head_.data(), sizeof record);
    wanted += record.num_places * sizeof(StreamPlace);
  }
  const uint64_t some = std::min<uint64_t>(wanted - head_.size(), piece.size());
  head_.insert(head_.end(), piece.begin(), piece.begin() + static_cast<int64_t>(some));
  piece = piece.subspan(some);
  if (head_.size() < wanted) return {};
  if (wanted == sizeof record) {
    std::memcpy(&record, head_.data(), sizeof record);
    if (record.num_places == 0 || record.num_places > kMostPlaces || record.bytes == 0)
      return internal_error("a record of {} bytes for {} places", record.bytes, record.num_places);
    return {};
  }
  places_.clear();
  for (uint64_t i = 0; i < record.num_places; ++i) {
    StreamPlace place;
    std::memcpy(&place, head_.data() + sizeof record + i * sizeof place, sizeof place);
    std::byte* const to = target(place.rank, place.offset, record.bytes);
    if (to == nullptr)
      return internal_error("{} bytes for offset {} of rank {}'s window", record.bytes,
                            place.offset, place.rank);
    places_.push_back(to);
  }
  left_ = record.bytes;
  head_.clear();
  return {};
}

Status StreamReader::take(std::span<const std::byte> piece, const Target& target) {
  while (!piece.empty()) {
    if (left_ == 0) {
      BRAID_RETURN_IF_ERROR(take_head(piece, target));
      continue;
    }
    const uint64_t some = std::min<uint64_t>(left_, piece.size());
    for (std::byte*& to : places_) {
      std::memcpy(to, piece.data(), some);
      to += some;
    }
    left_ -= some;
    piece = piece.subspan(some);
  }
  return {};
}

}  // namespace braid::moe
