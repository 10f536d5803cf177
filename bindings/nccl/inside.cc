#include "bindings/nccl/inside.h"

#include "base/status.h"

namespace braid::nccl {

namespace {

thread_local int depth_inside = 0;

}  // namespace

bool is_inside() { return depth_inside > 0; }
ReentryGuard::ReentryGuard() { ++depth_inside; }
ReentryGuard::~ReentryGuard() { --depth_inside; }

NcclResult result_of(int code) {
  switch (static_cast<Code>(code)) {
    case Code::kOk: return NcclResult::kSuccess;
    case Code::kInvalidArgument: return NcclResult::kInvalidArgument;
    case Code::kUnsupported: return NcclResult::kInvalidUsage;
    case Code::kUnavailable:
    case Code::kExhausted: return NcclResult::kSystemError;
    case Code::kDriver: return NcclResult::kUnhandledCudaError;
    case Code::kTimeout:
    case Code::kPeerLost: return NcclResult::kRemoteError;
    case Code::kCancelled:
    case Code::kInternal: break;
  }
  return NcclResult::kInternalError;
}

}  // namespace braid::nccl
