// The reduce kernels for FakeCuda: reduce() on the addresses that the launch names.
#pragma once

#include <cstring>

#include "coll/reduce/reduce.h"
#include "coll/reduce/reduce_args.h"
#include "coll/reduce/reduce_names.h"
#include "support/fake_kernels.h"

namespace braid::test {

inline Status fake_sum(const coll::ReduceArgs& args, Dtype dtype, RedOp op) {
  coll::reduce({args.srcs, static_cast<size_t>(args.num_srcs)}, args.dsts[0], args.count_elements,
               dtype, op);
  for (int d = 1; d < args.num_dsts; ++d)
    std::memcpy(args.dsts[d], args.dsts[0], args.count_elements * dtype_bytes(dtype));
  return {};
}

/// braid_reduce_<dtype>_<op>, all of them.
inline void define_sums(sys::FakeCuda& cuda) {
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp op : kAllRedOps)
      cuda.define_kernel(coll::reduce_kernel_name(dtype, op),
                         [=](const sys::LaunchShape&, std::span<void*> args) {
                           return fake_sum(argument<coll::ReduceArgs>(args, 0), dtype, op);
                         });
}

}  // namespace braid::test
