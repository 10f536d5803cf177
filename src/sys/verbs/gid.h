// GIDs: the addresses of a port. A port on Ethernet has several, of which most do not work: the
// same interface has link-local ones, and each address once for RoCE v1 (which routers drop) and
// once for v2. Index 0, which many programs take, is link-local and often v1.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::sys::verbs {

using Gid = std::array<uint8_t, 16>;

enum class GidType : uint8_t { kInfiniband = 0, kRoceV1 = 1, kRoceV2 = 2 };  // enum ibv_gid_type

struct GidEntry {
  Gid gid = {};
  uint32_t index = 0;  // in the port's table
  GidType type = GidType::kInfiniband;
};

/// "RoCE v2": for messages.
const char* gid_type_name(GidType type);
/// "10.78.0.1" for an IPv4 address mapped into a GID, else as IPv6.
std::string gid_text(const Gid& gid);
bool is_ipv4(const Gid& gid);
/// Nothing for text that is no numeric address.
std::optional<Gid> gid_of_address(std::string_view address);

struct GidWish {
  std::optional<uint32_t> index = {};  // exactly this one
  std::optional<Gid> gid = {};         // one with this address
};

/// The entry to use: what is wished for, else RoCE v2 before InfiniBand and v1, IPv4 before IPv6,
/// routable before link-local, the lower index first. unavailable when the table has none such.
Result<GidEntry> choose_gid(std::span<const GidEntry> table, const GidWish& wish);

}  // namespace braid::sys::verbs
