// Calls without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "base/status.h"
#include "errors.h"

namespace braid::python {

/// Runs call(), which answers a Status, without the GIL: other Python threads go on meanwhile.
/// Throws when it failed.
template <typename Call>
void run_unlocked(Call&& call) {
  Status status;
  {
    const nanobind::gil_scoped_release released;
    status = call();
  }
  raise_if_failed(status);
}

}  // namespace braid::python
