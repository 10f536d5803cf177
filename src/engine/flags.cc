#include "engine/flags.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "engine/ground.h"
#include "engine/spin.h"
#include "sys/host/api.h"
#include "sys/host/thread.h"

namespace braid::engine {
namespace {
constexpr int64_t kCloseNs = 5'000'000'000;
constexpr auto kNap = std::chrono::microseconds(20);
}  // namespace

Result<Flag> Flags::find(std::atomic<uint64_t>* at) {
  static_assert(sizeof(*at) == sizeof(uint64_t));
  if (at == nullptr) return Flag{};
  const auto address = reinterpret_cast<sys::DevicePtr>(at);
  if (address % sizeof(uint64_t) != 0)
    return invalid_argument("flag at {:#x}: it is not aligned to 8 bytes", address);
  if (const Gpu* const gpu = ground_.gpu.get(); gpu != nullptr) {
    const sys::RelaxedCapture relaxed(gpu->cuda());
    BRAID_ASSIGN_OR_RETURN(const auto current, sys::CurrentDevice::use(gpu->cuda(), gpu->device()));
    BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, gpu->cuda().pointer_facts(address));
    if (facts.kind == sys::MemoryKind::kDevice) {
      BRAID_RETURN_IF_ERROR(check_on_gpu(address, facts.device));
      BRAID_RETURN_IF_ERROR(open());
      return Flag{nullptr, address};
    }
  }
  if (!sys::is_readable(at))
    return invalid_argument(
        "flag at {:#x}: neither memory of the host nor of this engine's GPU ({}), or freed",
        address,
        ground_.gpu == nullptr ? "it has none" : fmt::format("GPU {}", ground_.gpu->device()));
  return Flag{at, 0};
}

Status Flags::check_on_gpu(sys::DevicePtr flag, int device) const {
  if (device != ground_.gpu->device())
    return invalid_argument("flag at {:#x}: memory of GPU {}: this engine is of GPU {}", flag,
                            device, ground_.gpu->device());
  BRAID_ASSIGN_OR_RETURN(const sys::AddressRange range, ground_.gpu->cuda().address_range(flag));
  if (flag + sizeof(uint64_t) <= range.base + range.bytes) return {};
  return invalid_argument(
      "flag at {:#x}: 8 bytes reach over the end of their allocation ({} bytes)", flag,
      range.bytes);
}

Status Flags::open() {
  const std::lock_guard lock(mutex_);
  if (is_ending_) return cancelled("the engine '{}' was closed", ground_.self.name);
  if (thread_.joinable()) return {};
  sys::Cuda& cuda = ground_.gpu->cuda();
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kHigh)));
  BRAID_ASSIGN_OR_RETURN(
      event_, sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOff)));
  BRAID_ASSIGN_OR_RETURN(thread_, sys::start_thread("flags of an engine", [this] { serve(); }));
  return {};
}

void Flags::write(sys::DevicePtr flag, const TicketPtr& ticket) {
  const Pending copy{flag, ticket};
  if (const Status begun = begin(copy); !begun.ok()) finish(copy, begun);
}

Status Flags::begin(const Pending& copy) {
  const std::lock_guard lock(mutex_);
  if (is_ending_) return cancelled("the engine '{}' was closed", ground_.self.name);
  sys::Cuda& cuda = ground_.gpu->cuda();
  const sys::RelaxedCapture relaxed(cuda);  // the caller of expect() may capture a stream
  BRAID_ASSIGN_OR_RETURN(const auto current, sys::CurrentDevice::use(cuda, ground_.gpu->device()));
  BRAID_RETURN_IF_ERROR(cuda.copy(copy.flag, ground_.gpu->one(), sizeof(uint64_t), stream_.get()));
  begun_.push_back(copy);
  wake_.notify_one();
  return {};
}

void Flags::finish(const Pending& copy, const Status& status) {
  if (status.ok()) return ground_.finish(copy.ticket, status);
  const std::string what = fmt::format("{}: its flag at {:#x} of GPU {}", copy.ticket->what(),
                                       copy.flag, ground_.gpu->device());
  ground_.finish(copy.ticket, status.with_context(what));
}

void Flags::serve() {
  const Status usable = ground_.gpu->use();
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_ending_ || !begun_.empty(); });
    if (begun_.empty()) return;
    const std::vector<Pending> copies = std::exchange(begun_, {});
    lock.unlock();
    const Status through = usable.ok() ? wait_until_through() : usable;
    for (const Pending& copy : copies) finish(copy, through);
    lock.lock();
  }
}

// An event and not the stream, which may always have a later copy. What the driver refuses here it
// refuses for a context that a failed kernel has ended, and nothing lands from such a one.
Status Flags::wait_until_through() const {
  sys::Cuda& cuda = ground_.gpu->cuda();
  BRAID_RETURN_IF_ERROR(cuda.record(event_.get(), stream_.get()));
  const int64_t began = now_ns();
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool is_through, cuda.is_done(event_.get()));
    if (is_through) return {};
    const int64_t now = now_ns();
    if (now >= give_up_at_ns_)
      return timeout(
          "the engine was closed {} s ago, and 1 is still not written there: it may be later",
          kCloseNs / 1'000'000'000);
    if (now - began < short_spin_ns())
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kNap);
  }
}

void Flags::close() {
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) return;
    is_ending_ = true;
    give_up_at_ns_ = now_ns() + kCloseNs;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (!stream_.is_held()) return;
  sys::Cuda& cuda = ground_.gpu->cuda();
  const sys::RelaxedCapture relaxed(cuda);
  const Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda, ground_.gpu->device());
  event_.reset();
  stream_.reset();
}

}  // namespace braid::engine
