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

/// `dtype` matters to sums, kRankReturn, kCombine and, with a cast, kSend: bfloat16, float16 or float32.
/// unavailable where this build has no kernels.
Result<sys::Kernel> find_entry(comm::KernelCache& kernels, Entry entry, Dtype dtype,
                               ScaleForm form = ScaleForm::kNone);

/// Loads all: a load does not end while a kernel runs that waits for a peer, and cannot be captured.
Status preload(comm::KernelCache& kernels);

}  // namespace braid::moe::gpu
