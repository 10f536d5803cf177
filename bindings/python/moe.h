#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "moe/window_layout.h"

namespace braid::python {

/// Raises what a low-latency dispatch of this shape is refused for, whatever its memory holds.
void check_dispatch(int rank, const moe::WindowLayout& layout, int num_tokens, int hidden,
                    int num_topk, int max_tokens, int num_experts, const std::string& dtype,
                    int form, bool has_weights);

void register_moe(nanobind::module_& module);
void register_moe_gpu(nanobind::module_& inner);  // moe_gpu.cc: the same on GPUs, by addresses

}  // namespace braid::python
