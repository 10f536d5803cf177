// Calls without the GIL.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "base/status.h"
#include "errors.h"

namespace braid::python {

/// Whether the interpreter ends: only its main thread may have the GIL again.
inline bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// While it lives this thread has no GIL: other Python threads go on, and engines' callbacks.
// Where the interpreter ends meanwhile, a daemon thread cannot have the GIL again: Python before 3.14
// ends it then by an exception that no frame of nanobind lets through, so that the whole process
// would end by std::terminate(). Such a thread stays here for as long as the process goes on, as
// Python does it itself from 3.14 on.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) ::pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* const state_;
};

/// Runs call(), which answers a Status, without the GIL: other Python threads go on meanwhile.
/// Throws when it failed.
template <typename Call>
void run_unlocked(Call&& call) {
  Status status;
  {
    const Unlocked released;
    status = call();
  }
  raise_if_failed(status);
}

}  // namespace braid::python
