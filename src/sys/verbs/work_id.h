// What a completion says of its work request: on failure nothing but the number that was posted
// with it, so that number must tell the kind and the operation. An operation's record is aligned to
// 16 bytes, which leaves the low bits of its address for the kind.
#pragma once

#include <cstdint>

#include "sys/fabric/api.h"

namespace braid::sys::verbs {

enum class Work : uint64_t { kTransfer = 0, kSend = 1, kReceive = 2, kImmediate = 3 };

constexpr uint64_t kWorkMask = 3;
static_assert(alignof(FabricOp) > kWorkMask);

inline uint64_t work_id(FabricOp* op, Work work) {
  return reinterpret_cast<uint64_t>(op) | static_cast<uint64_t>(work);
}
inline Work work_of(uint64_t id) { return static_cast<Work>(id & kWorkMask); }
inline FabricOp* operation_of(uint64_t id) { return reinterpret_cast<FabricOp*>(id & ~kWorkMask); }

}  // namespace braid::sys::verbs
