#include "bindings/nccl/windows.h"

#include <utility>

namespace braid::nccl {

void Windows::add(void* memory, uint64_t bytes, void* handle, void** where) {
  const std::lock_guard lock(mutex_);
  all_.push_back({memory, bytes, handle, where});
  has_new_ = true;
}

std::optional<Windows::Span> Windows::next_new() {
  const std::lock_guard lock(mutex_);
  if (num_seen_ < all_.size()) return Span{all_[num_seen_].memory, all_[num_seen_].bytes};
  has_new_ = false;
  return std::nullopt;
}

void Windows::note_mapped(bool is_mapped) {
  const std::lock_guard lock(mutex_);
  all_[num_seen_++].is_mapped = is_mapped;
}

void Windows::learn() {
  const std::lock_guard lock(mutex_);
  for (One& one : all_)
    if (void** const where = std::exchange(one.where, nullptr)) one.handle = *where;
}

void* Windows::drop(void* handle) {
  if (handle == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  for (One& one : all_) {
    if (one.handle != handle) continue;
    one.handle = nullptr;  // the library may give it to another one
    void* const memory = std::exchange(one.memory, nullptr);
    return std::exchange(one.is_mapped, false) ? memory : nullptr;
  }
  return nullptr;
}

}  // namespace braid::nccl
