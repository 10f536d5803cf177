#include "buffer.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "base/status.h"
#include "errors.h"
#include "sys/cuda/api.h"
#include "sys/cuda/owned.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

template <typename... Args>
[[noreturn]] void refuse(const Argument& argument, fmt::format_string<Args...> f, Args&&... args) {
  raise_if_failed(invalid_argument("{}: argument {}: {}", argument.function, argument.name,
                                   fmt::format(f, std::forward<Args>(args)...)));
  throw nb::python_error();  // not reached: the line above always throws
}

std::string type_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

/// The text of the Python error that is set, which is cleared.
std::string take_python_error() {
  nb::python_error error;
  return nb::cast<std::string>(nb::str(error.value()));
}

/// NumPy's name of the element type ("float32", "datetime64[ns]"), or "" for objects without a
/// dtype.
std::string numpy_type_name(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  const nb::object name = nb::getattr(dtype, "name", nb::none());
  return nb::isinstance<nb::str>(name) ? nb::cast<std::string>(name) : std::string();
}

bool holds_python_objects(nb::handle object, const Py_buffer& view) {
  if (view.format != nullptr && std::string_view(view.format) == "O") return true;
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return nb::getattr(dtype, "hasobject", nb::bool_(false)).is(nb::bool_(true));
}

/// "float32" for the struct module's format "f". Formats without a dtype of ours keep their own
/// spelling.
std::string name_of_format(const char* format, Py_ssize_t item_bytes) {
  const std::string_view text = format == nullptr ? "B" : format;
  const bool foreign_order = text.starts_with('>') || text.starts_with('!');
  const std::string_view code = text.find_first_of("@=<>!") == 0 ? text.substr(1) : text;
  if (code.size() != 1 || (foreign_order && item_bytes > 1))
    return fmt::format("format '{}'", text);
  const long bits = static_cast<long>(item_bytes) * 8;
  if (std::string_view("bhilqn").find(code) != std::string_view::npos)
    return fmt::format("int{}", bits);
  if (std::string_view("BHILQN").find(code) != std::string_view::npos)
    return fmt::format("uint{}", bits);
  if (std::string_view("efd").find(code) != std::string_view::npos)
    return fmt::format("float{}", bits);
  return code == "?" ? "bool" : fmt::format("format '{}'", text);
}

struct ReleaseView {
  void operator()(Py_buffer* view) const {
    PyBuffer_Release(view);
    delete view;
  }
};

/// DLPack's type as the array libraries name it.
std::string name_of_dlpack(nb::dlpack::dtype type) {
  using enum nb::dlpack::dtype_code;
  const int bits = type.bits;
  switch (static_cast<nb::dlpack::dtype_code>(type.code)) {
    case Int: return fmt::format("int{}", bits);
    case UInt: return fmt::format("uint{}", bits);
    case Float: return fmt::format("float{}", bits);
    case Bfloat: return fmt::format("bfloat{}", bits);
    case Complex: return fmt::format("complex{}", bits);
    case Bool: return "bool";
    case Float8_E4M3FN: return "float8_e4m3fn";
    case Float8_E5M2: return "float8_e5m2";
    default: return fmt::format("DLPack type {} of {} bits", static_cast<int>(type.code), bits);
  }
}

/// Calls into the object's own library; what it raises becomes our refusal, with its words.
template <typename Call>
nb::object ask(nb::handle object, const Argument& argument, Call&& call) {
  try {
    return call();
  } catch (nb::python_error& error) {
    const std::string why = nb::cast<std::string>(nb::str(error.value()));
    refuse(argument, "its {} cannot be exported through DLPack: {}", type_of(object), why);
  }
}

constexpr int kDlpackCpu = 1;
constexpr int kDlpackCuda = 2;

/// Refuses memory that the CPU cannot read before the object is asked for it, which would fail less
/// clearly.
/// The CUDA device that the object's memory is on, -1 for the host; other devices are refused.
int cuda_device_of(nb::handle object, const Argument& argument) {
  if (!nb::hasattr(object, "__dlpack_device__")) return -1;
  const nb::object answer =
      ask(object, argument, [&] { return object.attr("__dlpack_device__")(); });
  std::pair<int, int> device;
  if (!nb::try_cast(answer, device))
    refuse(argument, "its {} names no device of DLPack's: {}", type_of(object),
           nb::cast<std::string>(nb::repr(answer)));
  const auto [kind, number] = device;
  if (kind == kDlpackCpu) return -1;
  if (kind == kDlpackCuda) return number;
  raise_if_failed(unsupported(
      "{}: argument {}: asked for host or CUDA memory, found a {} on device {} (DLPack device "
      "type {})",
      argument.function, argument.name, type_of(object), number, kind));
  return -1;
}

/// Torch negates lazily, as in z.conj().imag, and its DLPack gives the bytes as they lie (a lazy
/// conjugate it refuses by itself).
void refuse_if_negated(nb::handle object, const Argument& argument) {
  if (!nb::hasattr(object, "is_neg")) return;
  const nb::object answer = ask(object, argument, [&] { return object.attr("is_neg")(); });
  if (answer.ptr() == Py_True)
    refuse(argument, "its {} is a lazily negated view: call resolve_neg() on it first",
           type_of(object));
}

/// The object's DLPack capsule; older libraries do not know max_version. Stream -1 asks a GPU's
/// library not to order its own streams after another: the call's stream is the caller's business.
nb::object capsule_of(nb::handle object, const Argument& argument, int gpu) {
  return ask(object, argument, [&]() -> nb::object {
    const nb::object method = object.attr("__dlpack__");
    if (gpu >= 0) {
      // Torch exports nothing of a device that is not current, and in the thread of messages
      // another one is. Where it cannot be made current, torch has the better words.
      const auto current = sys::CurrentDevice::use(sys::real_cuda(), gpu);
      return method(nb::arg("stream") = -1);
    }
    try {
      return method(nb::arg("max_version") = nb::make_tuple(1, 1));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      return method();
    }
  });
}

bool is_c_contiguous(const nb::ndarray<nb::ro>& array) {
  if (array.size() == 0) return true;  // whatever strides it was made with
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

/// True when the capsule may be written to. Only a versioned capsule can say that it may not.
bool is_writable(const nb::object& capsule) {
  // nb::ndarray<> would take the capsule over, so the flag is read where DLPack 1.0 puts it: behind
  // the two version words, the context and the deleter.
  struct VersionedHead {
    uint32_t major, minor;
    void* context;
    void* deleter;
    uint64_t flags;
  };
  constexpr uint64_t kReadOnlyFlag = 1;
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) return true;
  const auto* head =
      static_cast<const VersionedHead*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
  return (head->flags & kReadOnlyFlag) == 0;
}

}  // namespace

void Buffer::set_type(std::string type_name, uint64_t item_bytes) {
  item_bytes_ = item_bytes;
  type_name_ = std::move(type_name);
  if (const Result<Dtype> parsed = parse_dtype(type_name_);
      parsed.ok() && dtype_bytes(parsed.value()) == item_bytes)
    dtype_ = parsed.value();
}

Buffer Buffer::from_protocol(nb::handle object, const Argument& argument, Access access) {
  auto raw = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), raw.get(), PyBUF_FULL_RO) != 0) {
    // PyErr first: the fall-back runs Python code, which must not start with an error set.
    const std::string why = take_python_error();
    if (nb::hasattr(object, "dtype") && nb::hasattr(object, "view"))
      return from_extension_type(object, argument, access);
    refuse(argument, "its {} gives no buffer: {}", type_of(object), why);
  }
  const std::shared_ptr<Py_buffer> view(raw.release(), ReleaseView{});
  if (holds_python_objects(object, *view))
    refuse(argument, "asked for plain elements, found Python objects");
  if (access == Access::kWrite && view->readonly)
    refuse(argument, "asked for writable memory, found a read-only {}", type_of(object));
  if (!PyBuffer_IsContiguous(view.get(), 'C'))
    refuse(argument,
           "asked for contiguous memory in C order, found a {} with gaps or another order",
           type_of(object));
  Buffer buffer;
  buffer.owner_ = view;
  buffer.data_ = view->buf;
  buffer.bytes_ = static_cast<uint64_t>(view->len);
  std::string name = name_of_format(view->format, view->itemsize);
  // A format we do not know ("Zf") has a better name in NumPy ("complex64"), unless it names the
  // byte order wrongly.
  if (name.starts_with("format") && name.find_first_of(">!") == std::string::npos)
    if (const std::string better = numpy_type_name(object); !better.empty()) name = better;
  buffer.set_type(std::move(name), static_cast<uint64_t>(view->itemsize));
  return buffer;
}

Buffer Buffer::from_extension_type(nb::handle object, const Argument& argument, Access access) {
  const std::string name = numpy_type_name(object);
  const auto item_bytes = nb::cast<uint64_t>(object.attr("dtype").attr("itemsize"));
  nb::object plain;
  try {
    plain = object.attr("view")(nb::str(fmt::format("V{}", item_bytes).c_str()));
  } catch (nb::python_error& error) {
    refuse(argument, "elements of type {} cannot be read as bytes: {}", name,
           nb::cast<std::string>(nb::str(error.value())));
  }
  Buffer buffer = from_protocol(plain, argument, access);
  buffer.dtype_.reset();
  buffer.set_type(name, item_bytes);
  return buffer;
}

Buffer Buffer::from_dlpack(nb::handle object, const Argument& argument, Access access) {
  refuse_if_negated(object, argument);
  const int gpu = cuda_device_of(object, argument);
  const nb::object capsule = capsule_of(object, argument, gpu);
  if (access == Access::kWrite && !is_writable(capsule))
    refuse(argument, "asked for writable memory, found a read-only {}", type_of(object));
  auto array = std::make_shared<nb::ndarray<nb::ro>>();
  if (!nb::try_cast(capsule, *array))
    refuse(argument, "its {} gave a DLPack capsule that cannot be read", type_of(object));
  if (const uint16_t lanes = array->dtype().lanes; lanes != 1)
    refuse(argument,
           "asked for one number in each element, found a {} of {} in each (DLPack lanes)",
           type_of(object), lanes);
  if (!is_c_contiguous(*array))
    refuse(argument,
           "asked for contiguous memory in C order, found a {} with gaps or another order",
           type_of(object));
  Buffer buffer;
  buffer.data_ = const_cast<void*>(static_cast<const void*>(array->data()));
  buffer.gpu_ = gpu;
  buffer.bytes_ = array->nbytes();
  buffer.set_type(name_of_dlpack(array->dtype()), array->itemsize());
  buffer.owner_ = std::move(array);
  return buffer;
}

Buffer Buffer::borrow(nb::handle object, const Argument& argument, Access access) {
  if (PyObject_CheckBuffer(object.ptr())) return from_protocol(object, argument, access);
  if (nb::hasattr(object, "__dlpack__")) return from_dlpack(object, argument, access);
  refuse(argument, "asked for an array (buffer protocol or DLPack), found {}", type_of(object));
}

}  // namespace braid::python
