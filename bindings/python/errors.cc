#include "errors.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace braid::python {

namespace {
const char* class_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kUnsupported: return "Unsupported";
    case Code::kUnavailable: return "Unavailable";
    case Code::kExhausted: return "Exhausted";
    case Code::kDriver: return "DriverError";
    case Code::kTimeout: return "Timeout";
    case Code::kPeerLost: return "PeerLost";
    case Code::kCancelled: return "Cancelled";
    case Code::kOk:
    case Code::kInternal: break;
  }
  return "InternalError";
}
}  // namespace

void raise_if_failed(const Status& status) {
  if (status.ok()) return;
  if (PyErr_Occurred() != nullptr)
    throw nb::python_error();  // a signal handler raised while the call waited
  const nb::object error = exception_of(status);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

nb::object exception_of(const Status& status) {
  if (status.ok()) return nb::none();
  const nb::object type = nb::module_::import_("braid.errors").attr(class_of(status.code()));
  return type(status.message().c_str());
}

}  // namespace braid::python
