#pragma once

#include <nanobind/nanobind.h>

namespace braid::python {

void register_moe(nanobind::module_& module);

}  // namespace braid::python
