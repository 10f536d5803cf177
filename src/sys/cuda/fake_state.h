// What the parts of FakeCuda know of each object.
#pragma once

#include <cstdlib>
#include <memory>

#include "sys/cuda/fake.h"

namespace braid::sys {

struct FakeCuda::Block {
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  std::unique_ptr<std::byte, Free> memory;
  uint64_t bytes = 0;
  int device = 0;
  uint64_t buffer_id = 0;
};

struct FakeCuda::Physical {
  Fd memory;  // a memfd
  uint64_t bytes = 0;
  int device = -1;  // -1: imported, whose it is only the exporter knows
};

struct FakeCuda::Held {
  std::shared_ptr<Physical> physical;
  uint64_t references = 0;
};

struct FakeCuda::Mapping {
  std::shared_ptr<Physical> physical;
  uint64_t handle = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  bool is_accessible = false;
};

struct FakeCuda::EventState {
  bool has_timing = false;
  int64_t recorded_ns = 0;  // 0: never
};

/// Device addresses are host addresses, and handles are numbers.
inline void* handle_of(uint64_t id) { return pointer_to<void>(id); }

/// The entry of a map from base addresses whose range holds `address`; end() when none does.
template <typename Map, typename BytesOf>
auto entry_holding(Map& map, DevicePtr address, BytesOf bytes_of) {
  auto it = map.upper_bound(address);
  if (it == map.begin()) return map.end();
  --it;
  return address - it->first < bytes_of(it->second) ? it : map.end();
}
inline constexpr auto kBytesOf = [](const auto& entry) { return entry.bytes; };
inline constexpr auto kPlainBytes = [](uint64_t bytes) { return bytes; };

}  // namespace braid::sys
