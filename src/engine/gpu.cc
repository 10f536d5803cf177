#include "engine/gpu.h"

#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "engine/fatbins.h"
#include "sys/cuda/launch.h"

namespace braid::engine {
namespace {
// A stretch is cut so that all blocks have some of it.
constexpr uint64_t kTileBytes = 64 << 10;
}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::open(sys::Cuda& cuda, int device) {
  BRAID_RETURN_IF_ERROR(cuda.ready());
  std::unique_ptr<Gpu> gpu(new Gpu(cuda, device));
  BRAID_ASSIGN_OR_RETURN(const auto current, sys::CurrentDevice::use(cuda, device));
  BRAID_RETURN_IF_ERROR(gpu->set_up());
  return gpu;
}

Status Gpu::set_up() {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(device_));
  num_sms_ = static_cast<uint32_t>(std::max(1, facts.num_sms));
  kernels_ = sys::LoadedKernels::of(cuda_, device_);
  const auto fatbin = kernels::copy_pages_fatbin();
  BRAID_ASSIGN_OR_RETURN(kernel_, kernels_->find(fatbin, "braid_copy_pages", 0));
  BRAID_ASSIGN_OR_RETURN(list_kernel_, kernels_->find(fatbin, "braid_copy_page_list", 0));
  BRAID_ASSIGN_OR_RETURN(fetch_kernel_, kernels_->find(fatbin, "braid_fetch_list", 0));
  BRAID_RETURN_IF_ERROR(make(queues_.front()));  // most have one source
  BRAID_ASSIGN_OR_RETURN(pinned_, sys::Pages::map("pages for lists and slots", kPinnedBytes));
  BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr address,
                         cuda_.register_host(pinned_.data(), kPinnedBytes));
  registered_ = sys::RegisteredHost(cuda_, pinned_.data());
  return share_out(pinned_.data(), address);
}

Status Gpu::use() const {
  BRAID_RETURN_IF_ERROR(cuda_.use_device(device_));
  return cuda_.exchange_capture_mode(sys::CaptureMode::kRelaxed).status();
}

// One pinned block: lists first, then slots, whole pages each, then the words of trouble and the 1.
Status Gpu::share_out(std::byte* base, sys::DevicePtr address) {
  uint64_t at = 0;
  for (List& list : lists_) {
    list.copies = reinterpret_cast<PageCopy*>(base + at);
    list.address = address + at;
    at += kListBytes;
  }
  for (Slot& slot : slots_) {
    slot.memory = base + at;
    slot.address = address + at;
    at += kSlotBytes;
  }
  for (Flight& flight : flights_) {
    flight.trouble = reinterpret_cast<uint32_t*>(base + at);
    flight.trouble_address = address + at;
    at += sizeof(uint32_t);
    BRAID_ASSIGN_OR_RETURN(
        flight.event, sys::own<sys::OwnedEvent>(cuda_, cuda_.create_event(sys::EventTiming::kOff)));
  }
  static_assert(kFlights * sizeof(uint32_t) % sizeof(uint64_t) == 0);
  *reinterpret_cast<uint64_t*>(base + at) = 1;
  one_ = address + at;
  return {};
}

Gpu::~Gpu() {
  const Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda_, device_);
  (void)current;
  for (const Queue& queue : queues_)
    if (queue.stream.is_held()) (void)cuda_.synchronize(queue.stream.get());
  for (Flight& flight : flights_) flight.event.reset();
  for (Queue& queue : queues_) queue = {};
  registered_.reset();
  kernels_.reset();
}

Result<uint64_t> Gpu::done() {
  for (size_t i = 0; i < kFlights && done_ != begun_; ++i) {  // the oldest first
    Flight& flight = flights_[(next_flight_ + i) % kFlights];
    if (!flight.is_flying) continue;
    BRAID_ASSIGN_OR_RETURN(const bool is_done, cuda_.is_done(flight.event.get()));
    if (!is_done) break;
    land(flight);
  }
  return done_;
}

void Gpu::land(Flight& flight) {
  flight.is_flying = false;
  done_ = flight.mark;
  if (flight.list != nullptr) flight.list->is_taken = false;
  flight.list = nullptr;
  if (std::atomic_ref<uint32_t>(*flight.trouble).load(std::memory_order_acquire) == 0) return;
  constexpr size_t kMostTroubled = 1024;  // of those nobody has asked for
  if (troubled_.size() == kMostTroubled) troubled_.erase(troubled_.begin());
  troubled_.push_back(flight.mark);
}

bool Gpu::had_trouble(uint64_t mark) const {
  return std::find(troubled_.begin(), troubled_.end(), mark) != troubled_.end();
}

void Gpu::settle() {
  constexpr int64_t kMostNs = 5'000'000'000;
  const Deadline deadline = Deadline::after_ns(kMostNs);
  while (!deadline.passed()) {
    Result<uint64_t> reached = done();
    if (!reached.ok() || *reached == begun_) return;
  }
}

Result<Gpu::Flight*> Gpu::free_flight() {
  Flight& flight = flights_[next_flight_];
  if (flight.is_flying) BRAID_RETURN_IF_ERROR(done().status());
  return flight.is_flying ? nullptr : &flight;
}

Result<uint64_t> Gpu::fly(Flight& flight, const Queue& queue) {
  BRAID_RETURN_IF_ERROR(cuda_.record(flight.event.get(), queue.stream.get()));
  flight.mark = ++begun_;
  flight.is_flying = true;
  next_flight_ = (next_flight_ + 1) % kFlights;
  return flight.mark;
}

Status Gpu::make(Queue& queue) {
  BRAID_ASSIGN_OR_RETURN(queue.fetched, sys::own<sys::DeviceMemory>(
                                            cuda_, cuda_.alloc(kMostFetched * sizeof(PageEntry))));
  BRAID_ASSIGN_OR_RETURN(queue.stream, sys::own<sys::OwnedStream>(
                                           cuda_, cuda_.create_stream(sys::StreamPriority::kHigh)));
  return {};
}

Result<size_t> Gpu::next_queue() {
  const size_t number = num_queues_given_ % kQueues;
  if (!queues_[number].stream.is_held()) BRAID_RETURN_IF_ERROR(make(queues_[number]));
  ++num_queues_given_;
  return number;
}

Result<uint64_t> Gpu::begin(size_t queue, std::span<const PageCopy> copies, size_t& begun) {
  begun = 0;
  BRAID_ASSIGN_OR_RETURN(Flight* const flight, free_flight());
  const auto list =
      std::find_if(lists_.begin(), lists_.end(), [](const List& each) { return !each.is_taken; });
  if (flight == nullptr || list == lists_.end()) return uint64_t{0};
  size_t count = 0;
  for (const PageCopy& copy : copies) {
    const size_t tiles = std::max<size_t>(1, (copy.bytes + kTileBytes - 1) / kTileBytes);
    if (count + tiles > kListCopies && count != 0) break;
    // One stretch that is too long for a list is cut coarser.
    const uint64_t tile_bytes = tiles <= kListCopies
                                    ? kTileBytes
                                    : ((copy.bytes / kListCopies) / kTileBytes + 1) * kTileBytes;
    for (uint64_t at = 0; at < copy.bytes; at += tile_bytes)
      list->copies[count++] = {copy.to + at, copy.from + at, std::min(tile_bytes, copy.bytes - at)};
    ++begun;
  }
  if (count != 0) {
    const sys::LaunchShape shape{std::min(2 * num_sms_, static_cast<uint32_t>(count)), kCopyThreads,
                                 0};
    BRAID_RETURN_IF_ERROR(sys::launch(cuda_, kernel_, shape, queues_[queue].stream.get(),
                                      list->address, static_cast<uint32_t>(count)));
  }
  *flight->trouble = 0;
  flight->list = &*list;
  list->is_taken = true;
  return fly(*flight, queues_[queue]);
}

// With short pages of one plane every block reads an entry of its own, and to bring the list first
// takes longer than that.
Status Gpu::fetch_list(Queue& queue, PageJob& job) {
  constexpr uint32_t kMostBlocks = 64;
  const bool is_read_once = job.page_bytes <= kPageWarps * kPartBytes && job.num_planes == 1;
  if (job.list == 0 || is_read_once || job.count > kMostFetched) return {};
  const uint32_t blocks = (job.count + kFetchThreads - 1) / kFetchThreads;
  const sys::LaunchShape shape{std::min(blocks, kMostBlocks), kFetchThreads, 0};
  BRAID_RETURN_IF_ERROR(sys::launch(cuda_, fetch_kernel_, shape, queue.stream.get(),
                                    queue.fetched.get(), job.list, job.count));
  job.list = queue.fetched.get();
  return {};
}

// A block for every part where all is memory of GPUs: it has more to do with choosing who runs than the
// blocks have. PCIe is full with few.
Result<uint64_t> Gpu::begin(size_t queue, PageJob job, bool is_near) {
  constexpr uint32_t kFarBlocks = 128;
  BRAID_ASSIGN_OR_RETURN(Flight* const flight, free_flight());
  if (flight == nullptr) return uint64_t{0};
  *flight->trouble = 0;
  job.trouble = flight->trouble_address;
  BRAID_RETURN_IF_ERROR(fetch_list(queues_[queue], job));
  const uint64_t parts = job.count * ((job.page_bytes + kPartBytes - 1) / kPartBytes);
  const auto blocks = static_cast<uint32_t>((parts + kPageWarps - 1) / kPageWarps);
  const uint32_t most_far = std::max(1U, kFarBlocks / job.num_planes);
  job.blocks_each = is_near ? blocks : std::min(blocks, most_far);
  const sys::LaunchShape shape{job.blocks_each * job.num_planes, kPageThreads, 0};
  BRAID_RETURN_IF_ERROR(sys::launch(cuda_, list_kernel_, shape, queues_[queue].stream.get(), job));
  return fly(*flight, queues_[queue]);
}

Result<uint64_t> Gpu::begin(size_t queue, std::span<const sys::DeviceCopy> copies) {
  BRAID_ASSIGN_OR_RETURN(Flight* const flight, free_flight());
  if (flight == nullptr) return uint64_t{0};
  *flight->trouble = 0;
  BRAID_RETURN_IF_ERROR(cuda_.copy_batch(copies, queues_[queue].stream.get()));
  return fly(*flight, queues_[queue]);
}

Gpu::Slot* Gpu::free_slot() {
  if (done_ != begun_) (void)done();
  for (Slot& slot : slots_)
    if (!slot.is_held && slot.busy_until <= done_) return &slot;
  return nullptr;
}

sys::DevicePtr Gpu::map_host(std::byte* base, uint64_t bytes) {
  {
    const std::lock_guard lock(pins_mutex_);
    for (PinnedMemory& pin : pins_) {
      if (!pin.holds(base) || !pin.holds(base + bytes - 1)) continue;
      ++pin.num_uses;
      return pin.address + static_cast<uint64_t>(base - pin.base);
    }
  }
  Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda_, device_);
  if (!current.ok()) return 0;
  Result<sys::DevicePtr> mapped = cuda_.register_host(base, bytes);
  if (!mapped.ok()) return 0;
  const std::lock_guard lock(pins_mutex_);
  pins_.push_back({base, bytes, *mapped, 1});
  return *mapped;
}

void Gpu::unmap_host(const std::byte* base) {
  std::byte* pinned = nullptr;
  {
    const std::lock_guard lock(pins_mutex_);
    const auto pin = std::find_if(pins_.begin(), pins_.end(),
                                  [&](const PinnedMemory& each) { return each.holds(base); });
    if (pin == pins_.end() || --pin->num_uses != 0) return;
    pinned = pin->base;
    pins_.erase(pin);
  }
  Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda_, device_);
  if (current.ok()) (void)cuda_.unregister_host(pinned);
}

}  // namespace braid::engine
