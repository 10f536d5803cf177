#include "engine/gpu.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/fatbins.h"
#include "sys/cuda/launch.h"

namespace braid::engine {
namespace {
// A stretch is cut so that all blocks have some of it.
constexpr uint64_t kTileBytes = 64 << 10;
constexpr uint64_t kPinnedAlignment = 4096;
}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::open(sys::Cuda& cuda, int device) {
  BRAID_RETURN_IF_ERROR(cuda.ready());
  std::unique_ptr<Gpu> gpu(new Gpu(cuda, device));
  BRAID_ASSIGN_OR_RETURN(const auto current, sys::CurrentDevice::use(cuda, device));
  BRAID_RETURN_IF_ERROR(gpu->set_up().with_context(fmt::format("GPU {}", device)));
  return gpu;
}

Status Gpu::set_up() {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(device_));
  num_blocks_ = static_cast<uint32_t>(std::max(1, facts.num_sms)) * 2;
  kernels_ = sys::LoadedKernels::of(cuda_, device_);
  BRAID_ASSIGN_OR_RETURN(kernel_,
                         kernels_->find(kernels::copy_pages_fatbin(), "braid_copy_pages", 0));
  BRAID_ASSIGN_OR_RETURN(
      stream_, sys::own<sys::OwnedStream>(cuda_, cuda_.create_stream(sys::StreamPriority::kHigh)));
  // One pinned block: lists first, then slots, whole pages each.
  constexpr uint64_t kListBytes = kListCopies * sizeof(PageCopy);
  static_assert(kListBytes % kPinnedAlignment == 0);
  const uint64_t bytes = kLists * kListBytes + kSlots * kSlotBytes;
  pinned_ = std::make_unique<std::byte[]>(bytes + kPinnedAlignment);
  const auto raw = reinterpret_cast<uintptr_t>(pinned_.get());
  std::byte* base = pinned_.get() + (kPinnedAlignment - raw % kPinnedAlignment) % kPinnedAlignment;
  BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr address, cuda_.register_host(base, bytes));
  registered_ = sys::RegisteredHost(cuda_, base);
  for (size_t i = 0; i < kLists; ++i) {
    lists_[i].copies = reinterpret_cast<PageCopy*>(base + i * kListBytes);
    lists_[i].address = address + i * kListBytes;
    BRAID_ASSIGN_OR_RETURN(lists_[i].event, sys::own<sys::OwnedEvent>(
                                                cuda_, cuda_.create_event(sys::EventTiming::kOff)));
  }
  for (size_t i = 0; i < kSlots; ++i) {
    slots_[i].memory = base + kLists * kListBytes + i * kSlotBytes;
    slots_[i].address = address + kLists * kListBytes + i * kSlotBytes;
  }
  return {};
}

Gpu::~Gpu() {
  const Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda_, device_);
  (void)current;
  if (stream_.is_held()) (void)cuda_.synchronize(stream_.get());
  for (List& list : lists_) list.event.reset();
  stream_.reset();
  registered_.reset();
  kernels_.reset();
}

Result<uint64_t> Gpu::done() {
  for (size_t i = 0; i < kLists; ++i) {  // the oldest first
    List& list = lists_[(next_list_ + i) % kLists];
    if (!list.is_flying) continue;
    BRAID_ASSIGN_OR_RETURN(const bool is_done, cuda_.is_done(list.event.get()));
    if (!is_done) break;
    list.is_flying = false;
    done_ = list.mark;
  }
  return done_;
}

void Gpu::settle() {
  constexpr int64_t kMostNs = 5'000'000'000;
  const Deadline deadline = Deadline::after_ns(kMostNs);
  while (!deadline.passed()) {
    Result<uint64_t> reached = done();
    if (!reached.ok() || *reached == begun_) return;
  }
}

Result<uint64_t> Gpu::begin(std::span<const PageCopy> copies, size_t& begun) {
  begun = 0;
  List& list = lists_[next_list_];
  if (list.is_flying) BRAID_RETURN_IF_ERROR(done().status());
  if (list.is_flying) return uint64_t{0};
  size_t count = 0;
  for (const PageCopy& copy : copies) {
    const size_t tiles = std::max<size_t>(1, (copy.bytes + kTileBytes - 1) / kTileBytes);
    if (count + tiles > kListCopies && count != 0) break;
    // One stretch that is too long for a list is cut coarser.
    const uint64_t tile_bytes = tiles <= kListCopies
                                    ? kTileBytes
                                    : ((copy.bytes / kListCopies) / kTileBytes + 1) * kTileBytes;
    for (uint64_t at = 0; at < copy.bytes; at += tile_bytes)
      list.copies[count++] = {copy.to + at, copy.from + at, std::min(tile_bytes, copy.bytes - at)};
    ++begun;
  }
  if (count != 0) {
    const sys::LaunchShape shape{std::min(num_blocks_, static_cast<uint32_t>(count)), kCopyThreads,
                                 0};
    BRAID_RETURN_IF_ERROR(sys::launch(cuda_, kernel_, shape, stream_.get(), list.address,
                                      static_cast<uint32_t>(count)));
  }
  BRAID_RETURN_IF_ERROR(cuda_.record(list.event.get(), stream_.get()));
  list.mark = ++begun_;
  list.is_flying = true;
  next_list_ = (next_list_ + 1) % kLists;
  return list.mark;
}

Gpu::Slot* Gpu::free_slot() {
  if (done_ != begun_) (void)done();
  for (Slot& slot : slots_)
    if (!slot.is_held && slot.busy_until <= done_) return &slot;
  return nullptr;
}

sys::DevicePtr Gpu::map_host(std::byte* base, uint64_t bytes) const {
  Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda_, device_);
  if (!current.ok()) return 0;
  Result<sys::DevicePtr> mapped = cuda_.register_host(base, bytes);
  return mapped.ok() ? *mapped : 0;
}

void Gpu::unmap_host(std::byte* base) const {
  Result<sys::CurrentDevice> current = sys::CurrentDevice::use(cuda_, device_);
  if (current.ok()) (void)cuda_.unregister_host(base);
}

}  // namespace braid::engine
