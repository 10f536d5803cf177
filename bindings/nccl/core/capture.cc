#include "bindings/nccl/core/capture.h"

#include "sys/cuda/owned.h"

namespace braid::nccl {

namespace {

// CU_STREAM_LEGACY: the default stream by name. Neither it nor the null stream can be captured, and
// asking about them fails without a context and while another stream is captured.
bool is_legacy(sys::Stream stream) {
  return stream.handle == nullptr || reinterpret_cast<uintptr_t>(stream.handle) == 1;
}

/// As the current context sees the stream; true when that cannot be known.
bool captures(sys::Cuda& cuda, sys::Stream stream) {
  const Result<sys::CaptureState> state = cuda.capture_state(stream);
  return !state.ok() || state.value() != sys::CaptureState::kNone;
}

}  // namespace

bool is_capturing(sys::Cuda& cuda, int device, sys::Stream stream) {
  if (is_legacy(stream)) return false;
  const Result<sys::Context> context = cuda.current_context();
  if (!context.ok()) return true;
  if (context->handle != nullptr) return captures(cuda, stream);
  // NCCL has made the device's primary context when it made the communicator: this makes none.
  const auto scope = sys::CurrentDevice::use(cuda, device);
  return captures(cuda, stream);
}

}  // namespace braid::nccl
