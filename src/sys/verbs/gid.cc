#include "sys/verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace braid::sys::verbs {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

bool is_empty(const Gid& gid) { return gid == Gid{}; }

// Lower is better.
int rank_of(const GidEntry& entry) {
  const int type = entry.type == GidType::kRoceV2 ? 0 : entry.type == GidType::kInfiniband ? 1 : 2;
  const int address = is_ipv4(entry.gid) ? 0 : is_link_local(entry.gid) ? 2 : 1;
  return type * 3 + address;
}

std::string list_of(std::span<const GidEntry> table) {
  std::string out;
  for (const GidEntry& entry : table)
    out += fmt::format("{}{} {} ({})", out.empty() ? "" : ", ", entry.index, gid_text(entry.gid),
                       gid_type_name(entry.type));
  return out.empty() ? "nothing" : out;
}

bool fits(const GidEntry& entry, const GidWish& wish) {
  return !is_empty(entry.gid) && (!wish.index || *wish.index == entry.index) &&
         (!wish.gid || *wish.gid == entry.gid);
}

std::string words_of(const GidWish& wish) {
  if (wish.index) return fmt::format("GID index {}", *wish.index);
  return wish.gid ? fmt::format("a GID of address {}", gid_text(*wish.gid)) : "any GID";
}

}  // namespace

const char* gid_type_name(GidType type) {
  switch (type) {
    case GidType::kRoceV1: return "RoCE v1";
    case GidType::kRoceV2: return "RoCE v2";
    default: return "InfiniBand";
  }
}

bool is_ipv4(const Gid& gid) {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), gid.begin());
}

std::string gid_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.data() + kMappedPrefix.size(), text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

std::optional<Gid> gid_of_address(std::string_view address) {
  const std::string text(address);
  Gid gid = {};
  if (inet_pton(AF_INET6, text.c_str(), gid.data()) == 1) return gid;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), gid.begin());
  if (inet_pton(AF_INET, text.c_str(), gid.data() + kMappedPrefix.size()) == 1) return gid;
  return std::nullopt;
}

Result<GidEntry> choose_gid(std::span<const GidEntry> table, const GidWish& wish) {
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : table)
    if (fits(entry, wish) && (best == nullptr || rank_of(entry) < rank_of(*best))) best = &entry;
  if (best == nullptr)
    return unavailable("{} asked for, the port has {}", words_of(wish), list_of(table));
  return *best;
}

}  // namespace braid::sys::verbs
