#include "bindings/nccl/core/capture.h"

#include <optional>

#include "sys/cuda/owned.h"

namespace braid::nccl {

namespace {

// CU_STREAM_LEGACY: the default stream by name. Neither it nor the null stream can be captured, and
// asking about them fails without a context and while another stream is captured.
bool is_legacy(sys::Stream stream) {
  return stream.handle == nullptr || reinterpret_cast<uintptr_t>(stream.handle) == 1;
}

}  // namespace

bool is_capturing(sys::Cuda& cuda, int device, sys::Stream stream) {
  if (is_legacy(stream)) return false;
  const Result<sys::Context> context = cuda.current_context();
  if (!context.ok()) return true;
  // NCCL has made the device's primary context when it made the communicator: this makes none.
  std::optional<Result<sys::CurrentDevice>> scope;
  if (context->handle == nullptr) scope.emplace(sys::CurrentDevice::use(cuda, device));
  const Result<sys::CaptureState> state = cuda.capture_state(stream);
  return !state.ok() || state.value() != sys::CaptureState::kNone;
}

}  // namespace braid::nccl
