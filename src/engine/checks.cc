#include "engine/checks.h"

namespace braid::engine {

std::string RegionName::text() const {
  return owner == nullptr ? fmt::format("our region {}", id)
                          : fmt::format("region {} of '{}'", id, *owner);
}

Status check_ends(const char* what, const std::shared_ptr<Region>& local,
                  const std::shared_ptr<const RegionDescriptor>& remote) {
  if (local == nullptr) return invalid_argument("{}: it has no region of ours", what);
  if (remote == nullptr) return invalid_argument("{}: it has no region of a peer", what);
  return {};
}

Status check_spot(const char* what, const RegionName& region, uint64_t offset, uint64_t bytes) {
  if (is_within(offset, bytes, region.bytes)) return {};
  return invalid_argument("{}: {} bytes at offset {} of {}, which has {} bytes", what, bytes,
                          offset, region.text(), region.bytes);
}

Status check_writable(const std::string& what, Transfer::Kind kind,
                      std::span<const TransferPlane> planes) {
  const bool is_read = kind == Transfer::Kind::kRead;
  for (const TransferPlane& plane : planes) {
    const bool is_read_only = is_read ? plane.local->is_read_only : plane.remote->is_read_only;
    if (!is_read_only) continue;
    const RegionName filled = is_read ? RegionName(*plane.local) : RegionName(*plane.remote);
    return invalid_argument("{}: {} was read-only memory when it was registered", what,
                            filled.text());
  }
  return {};
}

}  // namespace braid::engine
