#include "bindings/nccl/core/capture.h"

#include "sys/cuda/owned.h"

namespace braid::nccl {

namespace {

/// As the current context sees the stream; true when that cannot be known.
bool captures(sys::Cuda& cuda, sys::Stream stream) {
  const Result<sys::CaptureState> state = cuda.capture_state(stream);
  return !state.ok() || state.value() != sys::CaptureState::kNone;
}

}  // namespace

// CU_STREAM_LEGACY: the default stream by name.
bool is_default_by_name(sys::Stream stream) {
  return stream.handle == nullptr || reinterpret_cast<uintptr_t>(stream.handle) == 1;
}

bool is_capturing(sys::Cuda& cuda, int device, sys::Stream stream) {
  if (is_default_by_name(stream)) return false;
  const Result<sys::Context> context = cuda.current_context();
  if (!context.ok()) return true;
  if (context->handle != nullptr) return captures(cuda, stream);
  // NCCL has made the device's primary context when it made the communicator: this makes none.
  const auto scope = sys::CurrentDevice::use(cuda, device);
  return captures(cuda, stream);
}

}  // namespace braid::nccl
