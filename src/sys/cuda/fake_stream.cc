#include <cstring>
#include <utility>

#include "base/clock.h"
#include "sys/cuda/fake_state.h"

namespace braid::sys {

Result<Stream> FakeCuda::create_stream(StreamPriority) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("create_stream"));
  return Stream{*streams_.insert(handle_of(++last_id_)).first};
}

Status FakeCuda::destroy_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("destroy_stream"));
  if (streams_.erase(stream.handle) == 1) return {};
  return driver_error("fake cuda: destroy_stream: no stream {}", stream.handle);
}

Result<bool> FakeCuda::is_done(Stream stream) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_on_stream("is_done", stream));
  return true;
}

Status FakeCuda::synchronize(Stream stream) {
  const std::lock_guard lock(mutex_);
  return begin_on_stream("synchronize", stream);
}

Status FakeCuda::synchronize_device() {
  const std::lock_guard lock(mutex_);
  return begin_in_context("synchronize_device");
}

Result<CaptureState> FakeCuda::capture_state(Stream stream) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_on_stream("capture_state", stream));
  return CaptureState::kNone;
}

Result<uint64_t> FakeCuda::capture_id(Stream stream) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_on_stream("capture_id", stream));
  return uint64_t{0};
}

Result<CaptureMode> FakeCuda::exchange_capture_mode(CaptureMode mode) {
  thread_local CaptureMode held = CaptureMode::kGlobal;
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("exchange_capture_mode"));
  return std::exchange(held, mode);
}

Result<Event> FakeCuda::create_event(EventTiming timing) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("create_event"));
  const Event event{handle_of(++last_id_)};
  events_[event.handle].has_timing = timing == EventTiming::kOn;
  return event;
}

Status FakeCuda::destroy_event(Event event) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("destroy_event"));
  if (events_.erase(event.handle) == 1) return {};
  return driver_error("fake cuda: destroy_event: no event {}", event.handle);
}

FakeCuda::EventState* FakeCuda::find(Event event) {
  const auto found = events_.find(event.handle);
  return found == events_.end() ? nullptr : &found->second;
}

Status FakeCuda::record(Event event, Stream stream) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_on_stream("record", stream));
  EventState* state = find(event);
  if (state == nullptr) return driver_error("fake cuda: record: no event {}", event.handle);
  state->recorded_ns = now_ns();
  return {};
}

Status FakeCuda::wait_event(Stream stream, Event event) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_on_stream("wait_event", stream));
  if (find(event) != nullptr) return {};
  return driver_error("fake cuda: wait_event: no event {}", event.handle);
}

Result<bool> FakeCuda::is_done(Event event) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("is_done"));
  if (find(event) != nullptr) return true;
  return driver_error("fake cuda: is_done: no event {}", event.handle);
}

Result<int64_t> FakeCuda::elapsed_ns(Event begin_event, Event end_event) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("elapsed_ns"));
  const EventState* from = find(begin_event);
  const EventState* to = find(end_event);
  const auto can_time = [](const EventState* e) {
    return e != nullptr && e->has_timing && e->recorded_ns != 0;
  };
  if (!can_time(from) || !can_time(to))
    return driver_error("fake cuda: elapsed_ns: an event has no time");
  return to->recorded_ns - from->recorded_ns;
}

Result<Module> FakeCuda::load_module(std::span<const std::byte>) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("load_module"));
  return Module{*modules_.insert(handle_of(++last_id_)).first};
}

Status FakeCuda::unload_module(Module module) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("unload_module"));
  if (modules_.erase(module.handle) == 1) return {};
  return driver_error("fake cuda: unload_module: no module {}", module.handle);
}

Result<Kernel> FakeCuda::kernel(Module module, const char* name) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("kernel"));
  const auto found = kernels_.find(name);
  if (!modules_.contains(module.handle) || found == kernels_.end())
    return driver_error("fake cuda: kernel: {}: CUDA_ERROR_NOT_FOUND (500)", name);
  kernels_found_.insert(name);
  return Kernel{&found->second};
}

std::set<std::string> FakeCuda::kernels_found() const {
  const std::lock_guard lock(mutex_);
  return kernels_found_;
}

Status FakeCuda::allow_shared_bytes(Kernel, uint32_t) {
  const std::lock_guard lock(mutex_);
  return begin("allow_shared_bytes");
}

// What was enqueued before is done, so a word that is short of the value stays so.
Status FakeCuda::wait_value(Stream stream, DevicePtr at, uint32_t value) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_on_stream("wait_value", stream));
  BRAID_RETURN_IF_ERROR(check_range("wait_value", at, sizeof value));
  if (*pointer_to<const uint32_t>(at) >= value) return {};
  return driver_error("fake cuda: wait_value: {} at {:#x} never reaches {}",
                      *pointer_to<const uint32_t>(at), at, value);
}

// A fake kernel reads the layout out of the map again.
Result<TensorMap> FakeCuda::tensor_map(const TensorLayout& layout) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("tensor_map"));
  if (layout.at % 16 != 0 || layout.stride_bytes[0] % 16 != 0 || layout.stride_bytes[1] % 16 != 0)
    return driver_error("fake cuda: tensor_map: CUDA_ERROR_INVALID_VALUE (1)");
  static_assert(sizeof(TensorLayout) <= sizeof(TensorMap));
  TensorMap map;
  std::memcpy(map.words.data(), &layout, sizeof layout);
  return map;
}

Status FakeCuda::launch_kernel(Kernel kernel, const LaunchShape& shape, Stream stream,
                               std::span<void*> arguments) {
  HostKernel run;
  {
    const std::lock_guard lock(mutex_);
    BRAID_RETURN_IF_ERROR(begin_on_stream("launch_kernel", stream));
    run = *static_cast<HostKernel*>(kernel.handle);
  }
  return run(shape, arguments);
}

}  // namespace braid::sys
