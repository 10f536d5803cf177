#pragma once

#include <nanobind/nanobind.h>

namespace braid::python {

void register_engine(nanobind::module_& module);

}  // namespace braid::python
