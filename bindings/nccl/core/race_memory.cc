#include "bindings/nccl/core/race_memory.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "group/agree.h"

namespace braid::nccl {

namespace {

struct LeftMemory {
  sys::DeviceMemory send, recv;
};

bool is_refusal(const std::vector<int64_t>& rank) {
  return rank[0] == static_cast<int64_t>(Code::kUnsupported);
}

}  // namespace

RaceMemory::~RaceMemory() {
  if (is_registered_) (void)device_.registrations().forget(whole());
  if (window_ != nullptr) real_calls_.close_window(real_, window_);
  give_back_whole();
}

void RaceMemory::give_back_whole() {
  if (void* const memory = std::exchange(whole_, nullptr))
    (void)real_.give_memory_back(real_.context, memory);
}

void RaceMemory::leave() {
  if (send_.is_held()) new LeftMemory{std::move(send_), std::move(recv_)};
  whole_ = window_ = nullptr;  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): it stays
  is_registered_ = false;
}

Status RaceMemory::take_buffers(uint64_t bytes) {
  sys::Cuda& cuda = device_.cuda();
  if (!in_windows_) {
    BRAID_ASSIGN_OR_RETURN(send_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes)));
    BRAID_ASSIGN_OR_RETURN(recv_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(bytes)));
    return {};
  }
  void* memory = nullptr;
  if (real_.take_memory(real_.context, 2 * bytes, &memory) != 0 || memory == nullptr)
    return exhausted("NCCL has no {} bytes for a window", 2 * bytes);
  whole_ = memory;
  return {};
}

Status RaceMemory::take(SizeRange& sizes, sys::Stream stream) {
  for (; sizes.num() > 0; --sizes.end) {
    const uint64_t bytes = kRacedBytes[sizes.end - 1];
    if (!take_buffers(bytes).ok()) {
      send_.reset();
      continue;
    }
    buffer_bytes_ = bytes;
    BRAID_RETURN_IF_ERROR(device_.cuda().fill(send(), 0, bytes, stream));
    return device_.cuda().fill(recv(), 0, bytes, stream);
  }
  return exhausted("there is no memory to race in");
}

// NCCL's first: what it refuses braid need not map.
Result<bool> RaceMemory::open(group::Group& group, uint64_t bytes, Deadline deadline) {
  if (!in_windows_) return true;
  buffer_bytes_ = bytes;
  Result<void*> opened = real_calls_.open_window(real_, whole_, 2 * bytes);
  if (opened.ok()) window_ = *opened;
  const int64_t code = static_cast<int64_t>(opened.status().code());
  if (opened.status().code() == Code::kTimeout) leave();  // NCCL is still at it
  BRAID_ASSIGN_OR_RETURN(const auto all,
                         group::exchange_numbers(group, "nccl race window", {&code, 1}, deadline));
  if (!opened.ok() && !is_refusal({code})) return opened.status();
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank][0] != 0 && !is_refusal(all[rank]))
      return unavailable("rank {} did not come to an end with a window", rank);
  Status refused = opened.status();
  if (std::ranges::none_of(all, is_refusal)) {
    const Status shared = device_.registrations().add(whole(), 2 * bytes);
    if (group.broken()) return group.fate();
    is_registered_ = shared.ok();
    if (is_registered_) return true;
    refused = shared;
  }
  log::info("nccl", "there are no windows to race in{}{}", refused.ok() ? "" : ": ",
            refused.message());
  return false;
}

Status RaceMemory::close() {
  if (std::exchange(is_registered_, false))
    BRAID_RETURN_IF_ERROR(device_.registrations().remove(whole()));
  if (void* const window = std::exchange(window_, nullptr)) real_calls_.close_window(real_, window);
  give_back_whole();
  return {};
}

}  // namespace braid::nccl
