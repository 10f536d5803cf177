#include "bindings/nccl/windows.h"

#include <algorithm>
#include <utility>

namespace braid::nccl {

void Windows::add(void* memory, uint64_t bytes, void* handle) {
  push({{memory, bytes}, handle != nullptr ? memory : nullptr, handle, nullptr});
}

void Windows::add_unfinished(void* memory, uint64_t bytes, void** where) {
  push({{memory, bytes}, memory, nullptr, where});
}

void Windows::push(const One& one) {
  const std::lock_guard lock(mutex_);
  all_.push_back(one);
  has_new_ = true;
}

void Windows::learn() {
  const std::lock_guard lock(mutex_);
  for (One& one : all_) {
    if (one.where == nullptr) continue;
    one.handle = *std::exchange(one.where, nullptr);
    if (one.handle == nullptr) one.memory = nullptr;
  }
}

std::optional<WindowSpan> Windows::next_new() {
  const std::lock_guard lock(mutex_);
  for (const One& one : all_)
    if (one.is_new) return WindowSpan{one.memory, one.span.bytes};
  has_new_ = false;
  return std::nullopt;
}

void Windows::note_mapped(bool is_mapped) {
  const std::lock_guard lock(mutex_);
  const auto one = std::find_if(all_.begin(), all_.end(), [](const One& o) { return o.is_new; });
  one->is_new = false;
  one->is_mapped = is_mapped;
  if (!is_mapped || one->memory == nullptr)
    all_.erase(one);
  else
    ++num_mapped_;
}

bool WindowSpan::holds(const void* part, uint64_t part_bytes) const {
  const auto base = reinterpret_cast<uintptr_t>(memory), begin = reinterpret_cast<uintptr_t>(part);
  return begin >= base && begin - base <= bytes && part_bytes <= bytes - (begin - base);
}

bool Windows::has(const void* memory, uint64_t bytes) const {
  if (num_mapped_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(), [&](const One& one) {
    return one.is_mapped && one.span.holds(memory, bytes);
  });
}

bool Windows::has_new(const void* memory, uint64_t bytes) const {
  if (!has_new()) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(),
                     [&](const One& one) { return one.is_new && one.span.holds(memory, bytes); });
}

void* Windows::drop(void* handle) {
  if (handle == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto one =
      std::find_if(all_.begin(), all_.end(), [&](const One& o) { return o.handle == handle; });
  if (one == all_.end()) return nullptr;
  void* const memory = one->is_mapped ? one->memory : nullptr;
  one->memory = one->handle = nullptr;  // the library may give the handle to another one
  if (memory != nullptr) --num_mapped_;
  if (!one->is_new) all_.erase(one);
  return memory;
}

}  // namespace braid::nccl
