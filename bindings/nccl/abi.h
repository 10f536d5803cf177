// NCCL's types as far as hooks look at them: the project's own reading of nccl.h (2.2x), numbers
// and layouts that are fixed by its ABI.
#pragma once

#include <cstddef>
#include <cstdint>

namespace braid::nccl {

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// Not blocking communicators answer kInProgress where others answer kSuccess.
constexpr bool is_good(NcclResult result) {
  return result == NcclResult::kSuccess || result == NcclResult::kInProgress;
}

using NcclComm = void*;    // ncclComm_t
using CudaStream = void*;  // cudaStream_t

struct UniqueId {  // ncclUniqueId, passed by value
  char bytes[128];
};

constexpr int kNoColor = -1;     // NCCL_SPLIT_NOCOLOR
constexpr int kNumDtypes = 12;   // int8 to float8_e5m2: braid's Dtype has the same numbers
constexpr int kNumRedops = 5;    // sum to avg, also braid's; what follows was made by the user
constexpr int kShrinkAbort = 1;  // NCCL_SHRINK_ABORT
constexpr int kSymmetric = 1;    // NCCL_WIN_COLL_SYMMETRIC

}  // namespace braid::nccl
