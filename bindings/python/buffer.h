// Buffer: a Python object's memory, borrowed for one call. Three doors, tried in this order:
//   1. the buffer protocol: NumPy arrays, bytearray, memoryview, array.array;
//   2. NumPy arrays of an extension type (ml_dtypes' bfloat16 and float8), which refuse door 1:
//      seen through .view() as unsigned integers, with the name of their dtype kept;
//   3. DLPack: torch CPU tensors and all other array libraries.
//      GPU tensors come through DLPack too; on_gpu() tells them apart.
// A buffer is contiguous in C order, or there is no Buffer but an exception that
// says what was asked and what was found. Nothing is written to before every argument of a call has
// passed.
//
// Threads: made and destroyed with the GIL held; data() may be used without it, the owner keeps the
// memory alive.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace braid::python {

enum class Access { kRead, kWrite };

/// Which argument of which call a message is about.
struct Argument {
  const char* function;
  const char* name;
};

class Buffer {
 public:
  /// Borrows `object`, or throws braid.InvalidArgument (not an array, not contiguous, read-only
  /// though it would be written, Python objects inside) or braid.Unsupported (memory that is not
  /// the host's).
  static Buffer borrow(nanobind::handle object, const Argument& argument, Access access);

  /// True when data() is the address of a CUDA device's memory.
  bool on_gpu() const { return gpu_ >= 0; }
  /// The CUDA device, -1 for host memory.
  int gpu() const { return gpu_; }
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  /// "float32", "bool", "complex64": as the object's own library calls it.
  const std::string& type_name() const { return type_name_; }
  /// The element type, when braid can reduce it; nothing for bool, complex, records.
  std::optional<Dtype> dtype() const { return dtype_; }
  /// What the wire carries: the element type, or single bytes for types that braid cannot reduce.
  Dtype wire_dtype() const { return dtype_.value_or(Dtype::kUint8); }
  uint64_t wire_count() const { return bytes_ / dtype_bytes(wire_dtype()); }
  uint64_t count() const { return item_bytes_ == 0 ? 0 : bytes_ / item_bytes_; }
  /// Wire elements in one element of the object.
  uint64_t wire_per_item() const { return item_bytes_ / dtype_bytes(wire_dtype()); }

 private:
  Buffer() = default;
  static Buffer from_protocol(nanobind::handle object, const Argument& argument, Access access);
  static Buffer from_extension_type(nanobind::handle object, const Argument& argument,
                                    Access access);
  static Buffer from_dlpack(nanobind::handle object, const Argument& argument, Access access);
  void set_type(std::string type_name, uint64_t item_bytes);

  std::shared_ptr<void> owner_;  // Py_buffer or DLPack capsule: released with the Buffer
  void* data_ = nullptr;
  int gpu_ = -1;
  uint64_t bytes_ = 0;
  uint64_t item_bytes_ = 0;
  std::string type_name_;
  std::optional<Dtype> dtype_;
};

}  // namespace braid::python
