// What may be wrong with a transfer that somebody asks for, found against the regions that it names
// before anything of it begins. Every message names the call, the region, what was asked and what
// there is.
//
// Threads: any; all of it is pure.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/descriptor.h"
#include "engine/regions.h"
#include "engine/transfer.h"

namespace braid::engine {

/// A region as messages name it.
struct RegionName {
  explicit RegionName(const Region& region) : id(region.id), bytes(region.bytes) {}
  explicit RegionName(const RegionDescriptor& region)
      : id(region.id), bytes(region.bytes), owner(&region.owner.name) {}
  std::string text() const;

  uint64_t id = 0, bytes = 0;
  const std::string* owner = nullptr;  // null: ours
};

/// Whether `bytes` at `offset` lie inside of `whole` bytes. No sum overflows.
inline bool is_within(uint64_t offset, uint64_t bytes, uint64_t whole) {
  return offset <= whole && bytes <= whole - offset;
}

/// Both regions are given.
Status check_ends(const char* what, const std::shared_ptr<Region>& local,
                  const std::shared_ptr<const RegionDescriptor>& remote);

/// The bytes lie inside of the region.
Status check_spot(const char* what, const RegionName& region, uint64_t offset, uint64_t bytes);

/// No plane is filled that was read-only memory when it was registered: a copy into such memory
/// would end the process whose it is.
Status check_writable(const std::string& what, Transfer::Kind kind,
                      std::span<const TransferPlane> planes);

}  // namespace braid::engine
