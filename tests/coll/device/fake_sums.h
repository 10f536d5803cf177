// The reduce kernels for FakeCuda: reduce() on the addresses that the launch names. Where reduce()
// would look at every byte through AddressSanitizer without optimisation, which was half of what
// these tests took, its kernels for any machine are compiled once more without both
// (tests/CMakeLists.txt), and the sanitizer is asked about whole ranges.
#pragma once

#include <cstring>

#include "base/status.h"
#include "coll/reduce/casts.h"
#include "coll/reduce/kernels.h"
#include "coll/reduce/reduce.h"
#include "coll/reduce/reduce_args.h"
#include "coll/reduce/reduce_names.h"
#include "support/fake_kernels.h"

#if defined(BRAID_PLAIN_SUMS)
#include <sanitizer/asan_interface.h>

namespace braid::coll::plain {
Kernel find_kernel(Dtype dtype, RedOp op) noexcept;
}
#endif

namespace braid::test {

#if defined(BRAID_PLAIN_SUMS)
inline bool is_accessible(const void* memory, uint64_t bytes) {
  return __asan_region_is_poisoned(const_cast<void*>(memory), bytes) == nullptr;
}

inline Status sum_into(const coll::ReduceArgs& args, Dtype dtype, RedOp op) {
  const uint64_t bytes = args.count_elements * dtype_bytes(dtype);
  bool is_all_accessible = is_accessible(args.dsts[0], bytes);
  for (int s = 0; s < args.num_srcs; ++s) is_all_accessible &= is_accessible(args.srcs[s], bytes);
  if (!is_all_accessible) return invalid_argument("fake sum: {} bytes end outside memory", bytes);
  if (bytes == 0) return {};
  if (args.num_srcs == 1)
    std::memmove(args.dsts[0], args.srcs[0], bytes);
  else
    coll::plain::find_kernel(dtype, op)(args.srcs, static_cast<size_t>(args.num_srcs), args.dsts[0],
                                        args.count_elements, static_cast<size_t>(args.num_srcs));
  return {};
}
#else
inline Status sum_into(const coll::ReduceArgs& args, Dtype dtype, RedOp op) {
  coll::reduce({args.srcs, static_cast<size_t>(args.num_srcs)}, args.dsts[0], args.count_elements,
               dtype, op);
  return {};
}
#endif

inline Status fake_sum(const coll::ReduceArgs& args, Dtype dtype, RedOp op) {
  BRAID_RETURN_IF_ERROR(sum_into(args, dtype, op));
  for (int d = 1; d < args.num_dsts; ++d)
    std::memcpy(args.dsts[d], args.dsts[0], args.count_elements * dtype_bytes(dtype));
  return {};
}

/// braid_widen_<dtype> and braid_narrow_<dtype>.
inline void define_casts(sys::FakeCuda& cuda) {
  const auto define = [&](const char* name, const auto& cast) {
    cuda.define_kernel(name, [=](const sys::LaunchShape&, std::span<void*> args) {
      const auto arrays = argument<coll::ReduceArgs>(args, 0);
      for (int s = 0; s < arrays.num_srcs; ++s)
        cast(arrays.srcs[s], arrays.dsts[s], arrays.count_elements);
      return Status();
    });
  };
  for (const Dtype dtype : kAllDtypes) {
    if (!coll::is_smaller_float(dtype)) continue;
    define(coll::widen_kernel_name(dtype), [=](const void* from, void* to, uint64_t count) {
      coll::widen(from, static_cast<float*>(to), count, dtype);
    });
    define(coll::narrow_kernel_name(dtype), [=](const void* from, void* to, uint64_t count) {
      coll::narrow(static_cast<const float*>(from), to, count, dtype);
    });
  }
}

/// braid_reduce_<dtype>_<op>, all of them, and casts.
inline void define_sums(sys::FakeCuda& cuda) {
  define_casts(cuda);
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp op : kAllRedOps)
      cuda.define_kernel(coll::reduce_kernel_name(dtype, op),
                         [=](const sys::LaunchShape&, std::span<void*> args) {
                           return fake_sum(argument<coll::ReduceArgs>(args, 0), dtype, op);
                         });
}

}  // namespace braid::test
