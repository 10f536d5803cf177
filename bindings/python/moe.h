// What the parts of braid._braid.moe share: a low-latency call's shape as Python says it, in host memory and
// on GPUs, and who registers what.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <tuple>

#include "moe/arguments.h"
#include "moe/window_layout.h"

namespace braid::python {

/// Raises where there is none of that name.
Dtype dtype_of(const std::string& name);

/// Of both low-latency calls: tokens, hidden, K, M, experts.
using Sizes = std::tuple<int, int, int, int, int>;

template <typename Call>
void set_sizes(Call& call, const Sizes& sizes, const std::string& dtype) {
  int hidden = 0;
  std::tie(call.num_tokens, hidden, call.num_topk, call.max_tokens, call.num_experts) = sizes;
  call.hidden = static_cast<uint64_t>(hidden);
  call.dtype = dtype_of(dtype);
}

/// A dispatch but for its memory.
moe::LowLatencyDispatch dispatch_of(const Sizes& sizes, const std::string& dtype, int form,
                                    bool has_weights);

/// Raises what such a dispatch is refused for, whatever its memory holds.
void check_dispatch(int rank, const moe::WindowLayout& layout, const moe::LowLatencyDispatch& call);

void register_moe(nanobind::module_& module);
void register_moe_gpu(nanobind::module_& inner);  // moe_gpu.cc: the same on GPUs, by addresses

}  // namespace braid::python
