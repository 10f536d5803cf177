#include "transport/nvlink/backing.h"

#include <algorithm>

namespace braid::nvlink {

Result<Backing> Backing::find(sys::Cuda& cuda, sys::DevicePtr memory, uint64_t bytes) {
  Backing backing;
  backing.cuda_ = &cuda;
  const sys::DevicePtr end = memory + bytes;
  for (sys::DevicePtr at = memory; at < end;) {
    BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, cuda.pointer_facts(at));
    if (facts.kind != sys::MemoryKind::kDevice)
      return invalid_argument("of {} bytes at {:#x} nothing is mapped from {:#x} on", bytes, memory,
                              at);
    if (!facts.can_export_fd)
      return unsupported("memory at {:#x} cannot be exported as a file descriptor", at);
    BRAID_ASSIGN_OR_RETURN(const sys::AddressRange range, cuda.address_range(at));
    if (at < range.base || at - range.base >= range.bytes)
      return internal_error("memory at {:#x} is said to lie in {} bytes at {:#x}", at, range.bytes,
                            range.base);
    auto allocation = sys::own<sys::OwnedAllocation>(cuda, cuda.retain_allocation(range.base));
    if (!allocation.ok())
      return unsupported("memory at {:#x} has no allocation to export: {}", at,
                         allocation.status().message());
    backing.parts_.push_back({range, std::move(allocation).value()});
    at = range.base + range.bytes;
  }
  return backing;
}

bool Backing::is_where_it_was(const Part& part) const {
  const auto range = cuda_->address_range(part.range.base);
  if (!range.ok() || range.value() != part.range) return false;
  const auto now =
      sys::own<sys::OwnedAllocation>(*cuda_, cuda_->retain_allocation(part.range.base));
  return now.ok() && now.value().get() == part.allocation.get();
}

bool Backing::is_mapped_at(sys::DevicePtr memory, uint64_t bytes) const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    const bool is_under =
        memory < part.range.base + part.range.bytes && part.range.base < memory + bytes;
    return !is_under || is_where_it_was(part);
  });
}

Result<MappedParts> MappedParts::reserve(sys::Cuda& cuda, uint64_t bytes) {
  MappedParts parts;
  BRAID_ASSIGN_OR_RETURN(parts.base_, cuda.reserve_addresses(bytes, 0));
  parts.cuda_ = &cuda;
  parts.bytes_ = bytes;
  return parts;
}

MappedParts::MappedParts(MappedParts&& other) noexcept
    : cuda_(std::exchange(other.cuda_, nullptr)),
      base_(other.base_),
      bytes_(other.bytes_),
      mapped_(std::move(other.mapped_)) {}

MappedParts& MappedParts::operator=(MappedParts&& other) noexcept {
  if (this == &other) return *this;
  reset();
  cuda_ = std::exchange(other.cuda_, nullptr);
  base_ = other.base_;
  bytes_ = other.bytes_;
  mapped_ = std::move(other.mapped_);
  return *this;
}

Status MappedParts::add(sys::Allocation allocation, uint64_t bytes, int device) {
  const sys::DevicePtr at = mapped_.empty() ? base_ : mapped_.back().base + mapped_.back().bytes;
  BRAID_RETURN_IF_ERROR(cuda_->map(at, bytes, allocation));
  mapped_.push_back({at, bytes});
  return cuda_->allow_access(at, bytes, device);
}

void MappedParts::reset() {
  sys::Cuda* cuda = std::exchange(cuda_, nullptr);
  if (cuda == nullptr) return;
  for (const sys::AddressRange& part : mapped_) (void)cuda->unmap(part.base, part.bytes);
  mapped_.clear();
  (void)cuda->free_addresses(base_, bytes_);
}

}  // namespace braid::nvlink
