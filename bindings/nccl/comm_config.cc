#include "bindings/nccl/comm_config.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstddef>
#include <cstring>

namespace braid::nccl {

namespace {

constexpr uint32_t kMagic = 0xcafebeef;
constexpr int kUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT

/// ncclConfig_t, the project's own reading of nccl.h (2.17 to 2.30).
struct NcclConfig {
  size_t size;
  uint32_t magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
  const char* name;
  int collnet_enable, cta_policy, shrink_share, nvls_ctas;
};
constexpr size_t kSpeedFields[] = {
    offsetof(NcclConfig, cga_cluster_size), offsetof(NcclConfig, min_ctas),
    offsetof(NcclConfig, max_ctas),         offsetof(NcclConfig, collnet_enable),
    offsetof(NcclConfig, cta_policy),       offsetof(NcclConfig, nvls_ctas)};

}  // namespace

uint64_t speed_of_config(const void* config) {
  if (config == nullptr) return 0;
  size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  uint32_t magic = 0;
  if (size < offsetof(NcclConfig, blocking) || size > 4096) return 0;  // not one that we know
  std::memcpy(&magic, static_cast<const char*>(config) + offsetof(NcclConfig, magic), sizeof magic);
  if (magic != kMagic) return 0;
  uint64_t hash = 0;
  for (const size_t at : kSpeedFields) {
    int value = kUndefined;
    if (at + sizeof value <= size)
      std::memcpy(&value, static_cast<const char*>(config) + at, sizeof value);
    if (value == kUndefined) continue;
    hash = (hash ^ (at << 32 | static_cast<uint32_t>(value))) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

RailConfig config_of_rails(int num_nodes) {
  constexpr uint32_t kVersion = 21800;
  constexpr int kFewestBlocks = 2, kMostBlocks = 8;
  const auto for_all = static_cast<int>(std::bit_ceil(static_cast<unsigned>((num_nodes + 1) / 2)));
  const int most_blocks = std::clamp(for_all, kFewestBlocks, kMostBlocks);
  return {sizeof(RailConfig), kMagic,      kVersion, 1,         kUndefined,
          kUndefined,         most_blocks, nullptr,  kUndefined};
}

}  // namespace braid::nccl
