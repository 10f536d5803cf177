// Every kernel that collectives on devices load, for FakeCuda: by their names alone, to be found
// and not to be launched.
#pragma once

#include <span>
#include <string>

#include "base/dtype.h"
#include "coll/reduce/reduce_names.h"
#include "sys/cuda/fake.h"

namespace braid::test {

/// Before those that do something.
inline void define_all_kernels(sys::FakeCuda& cuda) {
  const auto define = [&](const std::string& name) {
    cuda.define_kernel(name, [](const sys::LaunchShape&, std::span<void*>) { return Status(); });
  };
  for (const char* path : {"packets", "lines", "direct"})
    for (const char* op : {"all_gather", "all_to_all", "broadcast"})
      define(std::string("braid_") + path + "_" + op);
  for (const char* op : {"all_gather", "all_to_all", "broadcast"})
    define(std::string("braid_lines_") + op + "_wide");
  define("braid_relay");
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp op : kAllRedOps)
      for (const auto name_of : {coll::packet_reduce_kernel_name, coll::line_reduce_kernel_name,
                                 coll::direct_reduce_kernel_name, coll::reduce_kernel_name})
        define(name_of(dtype, op));
}

}  // namespace braid::test
