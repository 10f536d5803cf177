#pragma once

#include <nanobind/nanobind.h>

namespace braid::python {

void register_moe(nanobind::module_& module);
void register_moe_gpu(nanobind::module_& inner);  // moe_gpu.cc: the same on GPUs, by addresses

}  // namespace braid::python
