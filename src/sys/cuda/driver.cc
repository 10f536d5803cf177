#include "sys/cuda/driver.h"

#include <dlfcn.h>

namespace braid::sys::cuda_driver {

namespace {
constexpr char kName[] = "libcuda.so.1";
}

Library::Library() : library_(::dlopen(kName, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ != nullptr) return;
  const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps the text per thread
  what_is_wrong_ = why != nullptr ? why : std::string("cannot open ") + kName;
}

void* Library::find(const char* name) {
  if (library_ == nullptr) return nullptr;
  void* found = ::dlsym(library_, name);
  if (found == nullptr && what_is_wrong_.empty())
    what_is_wrong_ = std::string(kName) + " is too old: it lacks " + name;
  return found;
}

void* Library::find_newer(const char* name) const {
  return library_ == nullptr ? nullptr : ::dlsym(library_, name);
}

int capture_of(const Driver& driver, Driver::Handle stream, int* state, Driver::Flags64* id) {
  constexpr int kNotFound = 500;  // CUDA_ERROR_NOT_FOUND
  if (driver.stream_capture.function != nullptr)
    return driver.stream_capture(stream, state, id, nullptr, nullptr, nullptr, nullptr);
  if (driver.stream_capture_before.function != nullptr)
    return driver.stream_capture_before(stream, state, id, nullptr, nullptr, nullptr);
  return kNotFound;
}

}  // namespace braid::sys::cuda_driver
