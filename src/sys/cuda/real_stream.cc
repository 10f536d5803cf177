#include "sys/cuda/real.h"

namespace braid::sys {

using namespace cuda_driver;  // NOLINT(google-build-using-namespace): the driver's own words

namespace {

constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr unsigned kEventDefault = 0;        // CU_EVENT_DEFAULT
constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kMaxDynamicSharedBytes = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

}  // namespace

Result<bool> RealCuda::done_of(const char* call, const std::string& object, int rc) const {
  if (rc == kSuccess) return true;
  if (rc == kNotReady) return false;
  return failed(call, object, rc);
}

Result<Stream> RealCuda::create_stream(StreamPriority priority) {
  int lowest = 0, highest = 0;
  BRAID_RETURN_IF_ERROR(
      call(driver_.stream_priorities, about("the current context"), &lowest, &highest));
  Stream stream;
  BRAID_RETURN_IF_ERROR(call(driver_.stream_create, about("a new stream"), &stream.handle,
                             kStreamNonBlocking, priority == StreamPriority::kHigh ? highest : 0));
  return stream;
}

Status RealCuda::destroy_stream(Stream stream) {
  return call(driver_.stream_destroy, about("stream {}", stream.handle), stream.handle);
}

Result<bool> RealCuda::is_done(Stream stream) {
  BRAID_RETURN_IF_ERROR(status_);
  const int rc = driver_.stream_query(stream.handle);
  return done_of(driver_.stream_query.name, fmt::format("stream {}", stream.handle), rc);
}

Status RealCuda::synchronize(Stream stream) {
  return call(driver_.stream_synchronize, about("stream {}", stream.handle), stream.handle);
}

Status RealCuda::synchronize_device() {
  return call(driver_.context_synchronize, about("the current device"));
}

Result<CaptureState> RealCuda::capture_state(Stream stream) {
  int state = 0;
  BRAID_RETURN_IF_ERROR(
      call(driver_.stream_capturing, about("stream {}", stream.handle), stream.handle, &state));
  return static_cast<CaptureState>(state);
}

Result<uint64_t> RealCuda::capture_id(Stream stream) {
  BRAID_RETURN_IF_ERROR(status_);
  int state = 0;
  cuda_driver::Driver::Flags64 id = 0;
  const int rc = cuda_driver::capture_of(driver_, stream.handle, &state, &id);
  if (rc != kSuccess)
    return failed(driver_.stream_capture.name, fmt::format("stream {}", stream.handle), rc);
  return static_cast<CaptureState>(state) == CaptureState::kActive ? uint64_t{id} : 0;
}

Result<CaptureMode> RealCuda::exchange_capture_mode(CaptureMode mode) {
  auto value = static_cast<int>(mode);
  BRAID_RETURN_IF_ERROR(call(driver_.capture_mode, about("mode {}", value), &value));
  return static_cast<CaptureMode>(value);
}

Result<Event> RealCuda::create_event(EventTiming timing) {
  Event event;
  BRAID_RETURN_IF_ERROR(call(driver_.event_create, about("a new event"), &event.handle,
                             timing == EventTiming::kOn ? kEventDefault : kEventDisableTiming));
  return event;
}

Status RealCuda::destroy_event(Event event) {
  return call(driver_.event_destroy, about("event {}", event.handle), event.handle);
}

Status RealCuda::record(Event event, Stream stream) {
  return call(driver_.event_record, about("event {} on stream {}", event.handle, stream.handle),
              event.handle, stream.handle);
}

Status RealCuda::wait_event(Stream stream, Event event) {
  return call(driver_.stream_wait_event,
              about("stream {} for event {}", stream.handle, event.handle), stream.handle,
              event.handle, 0);
}

Result<bool> RealCuda::is_done(Event event) {
  BRAID_RETURN_IF_ERROR(status_);
  const int rc = driver_.event_query(event.handle);
  return done_of(driver_.event_query.name, fmt::format("event {}", event.handle), rc);
}

Result<int64_t> RealCuda::elapsed_ns(Event begin, Event end) {
  float ms = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.event_elapsed,
                             about("event {} to {}", begin.handle, end.handle), &ms, begin.handle,
                             end.handle));
  return static_cast<int64_t>(static_cast<double>(ms) * 1e6);
}

Result<Module> RealCuda::load_module(std::span<const std::byte> fatbin) {
  BRAID_RETURN_IF_ERROR(status_);
  if (fatbin.empty()) return unsupported("cuda: this build of braid has no kernels (no nvcc)");
  Module module;
  BRAID_RETURN_IF_ERROR(call(driver_.module_load, about("a fatbin of {} bytes", fatbin.size()),
                             &module.handle, fatbin.data()));
  return module;
}

Status RealCuda::unload_module(Module module) {
  return call(driver_.module_unload, about("module {}", module.handle), module.handle);
}

Result<Kernel> RealCuda::kernel(Module module, const char* name) {
  Kernel kernel;
  BRAID_RETURN_IF_ERROR(
      call(driver_.module_function, about("{}", name), &kernel.handle, module.handle, name));
  return kernel;
}

Status RealCuda::allow_shared_bytes(Kernel kernel, uint32_t bytes) {
  return call(driver_.function_set, about("{} shared bytes for kernel {}", bytes, kernel.handle),
              kernel.handle, kMaxDynamicSharedBytes, static_cast<int>(bytes));
}

Status RealCuda::wait_value(Stream stream, DevicePtr at, uint32_t value) {
  constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ
  return call(driver_.stream_wait_value, about("word at {:#x}, {}", at, value), stream.handle, at,
              value, kAtLeast);
}

Result<TensorMap> RealCuda::tensor_map(const TensorLayout& layout) {
  if (driver_.tensor_map.function == nullptr)
    return unavailable("cuda: tensor maps: the driver is older than CUDA 12");
  constexpr int kFp16 = 6, kBf16 = 9, kSwizzle128 = 3, kPromotion256 = 3;
  constexpr std::array<unsigned, 3> kSteps{1, 1, 1};
  const std::array<unsigned long long, 3> extent{layout.extent[0], layout.extent[1],
                                                 layout.extent[2]};
  const std::array<unsigned long long, 2> stride{layout.stride_bytes[0], layout.stride_bytes[1]};
  TensorMap map;
  BRAID_RETURN_IF_ERROR(
      call(driver_.tensor_map,
           about("tensor map of {} x {} x {} at {:#x}", extent[2], extent[1], extent[0], layout.at),
           map.words.data(), layout.element == TensorLayout::Element::kBf16 ? kBf16 : kFp16, 3U,
           pointer_to<void>(layout.at), extent.data(), stride.data(), layout.box.data(),
           kSteps.data(), 0, kSwizzle128, kPromotion256, 0));
  return map;
}

Status RealCuda::launch_kernel(Kernel kernel, const LaunchShape& shape, Stream stream,
                               std::span<void*> arguments) {
  return call(driver_.launch,
              about("kernel {}, {} blocks of {} threads", kernel.handle, shape.num_blocks,
                    shape.num_threads),
              kernel.handle, shape.num_blocks, 1, 1, shape.num_threads, 1, 1, shape.shared_bytes,
              stream.handle, arguments.data(), nullptr);
}

}  // namespace braid::sys
