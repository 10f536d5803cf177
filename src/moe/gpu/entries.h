// Which kernel does what for which type of rows, found among those that are loaded.
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "comm/device/kernel_cache.h"
#include "moe/scale_form.h"

namespace braid::moe::gpu {

enum class Entry {
  kLayout,
  kSend,
  kFanOut,
  kReturn,
  kSum,
  kRankReturn,
  kRankSum,
  kBegin,
  kFinish,
  kCombine
};

/// Whether rows go in bulk where the GPU can (bulk_rows.cuh).
constexpr bool moves_in_bulk(Entry entry) {
  return entry == Entry::kBegin || entry == Entry::kFinish;
}

/// `dtype` matters to sums, kRankReturn, kCombine and, with a cast, kSend: bfloat16, float16 or float32.
/// unavailable where this build has no kernels. It may be launched with `shared_bytes` of dynamic shared
/// memory, the same at every use.
Result<sys::Kernel> find_entry(comm::KernelCache& kernels, Entry entry, Dtype dtype,
                               ScaleForm form = ScaleForm::kNone, uint32_t shared_bytes = 0);

/// Loads all: a load does not end while a kernel runs that waits for a peer, and cannot be captured.
/// `bulk_bytes`: shared memory of those that move rows in bulk.
Status preload(comm::KernelCache& kernels, uint32_t bulk_bytes);

}  // namespace braid::moe::gpu
