// Status to exception: the only place where braid throws. The classes live in
// python/braid/errors.py.
#pragma once

#include <nanobind/nanobind.h>

#include "base/status.h"

namespace braid::python {

/// Throws the braid.Error subclass of a failed Status; returns when it is ok. Needs the GIL.
void raise_if_failed(const Status& status);

/// What it would throw; None when it is ok. Needs the GIL.
nanobind::object exception_of(const Status& status);

template <typename T>
T value_or_raise(Result<T> result) {
  raise_if_failed(result.status());
  return std::move(result).value();
}

}  // namespace braid::python
