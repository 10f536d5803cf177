#include "engine/regions.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "sys/host/api.h"
#include "sys/verbs/api.h"

namespace braid::engine {

namespace {

Status no_region(uint64_t id) {
  return invalid_argument("there is no region {} here: it was unregistered, or is another engine's",
                          id);
}

// Reads the word that the last byte lies in, which is in one page: a file that was cut lacks its
// last pages.
bool is_end_readable(const Region& region) {
  const uint64_t last = reinterpret_cast<uint64_t>(region.base) + region.bytes - 1;
  return sys::is_readable(sys::pointer_to<void>(last & ~uint64_t{sizeof(uint64_t) - 1}));
}

}  // namespace

Result<Nic> open_nic(const NicRequest& request) {
  sys::FabricLibrary* library = request.library;
  if (library == nullptr) {
    BRAID_ASSIGN_OR_RETURN(library,
                           request.provider == "verbs" ? sys::real_verbs() : sys::real_fabric());
  }
  BRAID_ASSIGN_OR_RETURN(auto domain, library->open({request.provider, request.address, 0}));
  if (!domain->limits().is_truthful)
    return unsupported(
        "NIC {}: it completes writes that never landed, so nothing can be built on it",
        domain->description());
  // Some providers open a domain at any address and find out here that this host has no such one.
  BRAID_RETURN_IF_ERROR(domain->open_endpoint({}).status().with_context(
      fmt::format("NIC {} at '{}'", request.provider, request.address)));
  Nic nic;
  nic.provider = request.provider;
  nic.probe = std::make_unique<std::array<std::byte, 64>>();
  sys::FabricMemory memory;
  memory.base = nic.probe->data();
  memory.bytes = nic.probe->size();
  BRAID_ASSIGN_OR_RETURN(nic.probe_region, domain->register_memory(memory, sys::random_key()));
  nic.domain = std::move(domain);
  return nic;
}

Result<std::shared_ptr<Region>> Regions::add(std::byte* base, uint64_t bytes, int device) {
  if (base == nullptr || bytes == 0)
    return invalid_argument("a region of {} bytes at {}: it must have memory", bytes,
                            static_cast<void*>(base));
  if (reinterpret_cast<uint64_t>(base) + bytes < bytes)
    return invalid_argument("a region of {} bytes at {} reaches over the end of the addresses",
                            bytes, static_cast<void*>(base));
  auto region = std::make_shared<Region>();
  region->base = base;
  region->bytes = bytes;
  region->device = device;
  if (device >= 0) {
    BRAID_RETURN_IF_ERROR(describe_gpu_memory(*region));
  } else {
    BRAID_RETURN_IF_ERROR(look_at(*region));
    if (gpu_ != nullptr) region->address = gpu_->map_host(base, bytes);
    region->is_pinned = region->address != 0;
  }
  {
    const std::lock_guard lock(nics_mutex_);
    BRAID_RETURN_IF_ERROR(register_on_nics(*region));
  }
  const std::lock_guard lock(mutex_);
  region->id = next_id_++;
  regions_[region->id] = region;
  return region;
}

// Both ends of it: memory that is one to its user is one mapping, or several that are alike.
Status Regions::look_at(Region& region) {
  if (!sys::is_mapped(region.base, region.bytes))
    return invalid_argument("{} bytes at {}: no memory, or only a part of that is", region.bytes,
                            static_cast<void*>(region.base));
  if (!is_end_readable(region))
    return invalid_argument(
        "{} bytes at {}: memory that cannot be read: it is protected, or behind the end of its "
        "file",
        region.bytes, static_cast<void*>(region.base));
  region.is_read_only =
      !sys::is_writable(region.base) || !sys::is_writable(region.base + region.bytes - 1);
  return {};
}

Status Regions::register_on_nics(Region& region) {
  sys::FabricMemory memory;
  memory.base = region.base;
  memory.bytes = region.bytes;
  memory.cuda_device = region.device;
  for (const Nic& nic : nics_) {
    Result<const sys::FabricRegion*> handle =
        nic.domain->register_memory(memory, sys::random_key());
    if (!handle.ok() && region.device >= 0 && handle.status().code() == Code::kUnsupported)
      handle = nullptr;
    if (!handle.ok()) {
      release(region);
      return handle.status().with_context(
          fmt::format("{} bytes at {}", region.bytes, static_cast<void*>(region.base)));
    }
    region.handles.push_back(*handle);
  }
  return {};
}

// Another process reaches an allocation, not an address: its handle and where in it the region is.
Status Regions::describe_gpu_memory(Region& region) {
  const auto address = reinterpret_cast<sys::DevicePtr>(region.base);
  if (gpu_ == nullptr || gpu_->device() != region.device)
    return unsupported("memory of GPU {}: this engine is of {}", region.device,
                       gpu_ == nullptr ? "no GPU" : fmt::format("GPU {}", gpu_->device()));
  BRAID_ASSIGN_OR_RETURN(const auto current, sys::CurrentDevice::use(gpu_->cuda(), region.device));
  BRAID_ASSIGN_OR_RETURN(const sys::AddressRange range, gpu_->cuda().address_range(address));
  if (address + region.bytes > range.base + range.bytes)
    return invalid_argument("{} bytes at {:#x} reach over the end of their allocation ({} bytes)",
                            region.bytes, address, range.bytes);
  BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, gpu_->cuda().pointer_facts(address));
  if (!facts.is_legacy_ipc_capable)
    return unsupported(
        "{} bytes at {:#x}: memory that the driver shares with no other process "
        "(of cuMemCreate, as torch's expandable segments, or of cudaMallocAsync)",
        region.bytes, address);
  BRAID_ASSIGN_OR_RETURN(region.ipc, gpu_->cuda().export_ipc(address));
  region.ipc_offset = address - range.base;
  region.address = address;
  return {};
}

Result<std::shared_ptr<Region>> Regions::add_own(sys::DevicePtr address, uint64_t bytes) {
  auto region = std::make_shared<Region>();
  region->base = sys::pointer_to<std::byte>(address);
  region->bytes = bytes;
  region->device = gpu_->device();
  BRAID_RETURN_IF_ERROR(describe_gpu_memory(*region));
  const std::lock_guard lock(mutex_);
  region->id = next_id_++;
  return region;
}

std::shared_ptr<Region> Regions::find(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  return found == regions_.end() || found->second->is_freed ? nullptr : found->second;
}

bool Regions::begin_use(const std::shared_ptr<Region>& region) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(region->id);
  if (found == regions_.end() || found->second != region || is_freed(*region)) return false;
  ++region->num_uses;
  return true;
}

// Memory that went back to an allocator which keeps it looks as before. Memory behind the end of a
// file that was cut is still mapped, and a process that touches it is ended.
bool Regions::is_freed(Region& region) {
  if (region.device >= 0 || region.is_freed) return region.is_freed;
  const bool is_mapped = sys::is_mapped(region.base, region.bytes);
  if (is_mapped && is_end_readable(region)) return false;
  region.how_freed = is_mapped ? "cannot be read any more (was its file cut?)"
                               : "was freed while it was registered";
  region.is_freed = true;
  log::error("engine", "{}", text_of_freed(region));
  return true;
}

size_t Regions::count() const {
  const std::lock_guard lock(mutex_);
  return regions_.size();
}

void Regions::note_freed() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, region] : regions_) (void)is_freed(*region);
}

std::vector<uint64_t> Regions::take_freed() {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> ids;
  for (const auto& [id, region] : regions_)
    if (is_freed(*region) && !std::exchange(region->is_told, true)) ids.push_back(id);
  return ids;
}

// Engines number their regions alike, so the number alone does not tell.
bool Regions::is_own(const Region& region) const {
  const auto found = regions_.find(region.id);
  return found != regions_.end() && found->second.get() == &region;
}

Status Regions::check_own(const Region& region) const {
  const std::lock_guard lock(mutex_);
  return is_own(region) ? Status() : no_region(region.id);
}

Status Regions::hide(const Region& region, TicketPtr clear) {
  const std::lock_guard lock(mutex_);
  if (!is_own(region)) return no_region(region.id);
  const auto found = regions_.find(region.id);
  if (const uint32_t uses = region.num_uses; uses != 0)
    return invalid_argument("region {}: {} transfers of ours use it; wait for them or cancel them",
                            region.id, uses);
  hidden_[region.id] = {found->second, std::move(clear)};
  gone_.push_back({region.id, now_ns()});
  regions_.erase(found);
  if (gone_.size() > kMostGone) gone_.pop_front();
  return {};
}

TicketPtr Regions::hidden(const Region& region) const {
  const std::lock_guard lock(mutex_);
  const auto found = hidden_.find(region.id);
  return found == hidden_.end() || found->second.region.get() != &region ? nullptr
                                                                         : found->second.clear;
}

std::vector<uint64_t> Regions::all_hidden() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> ids;
  for (const auto& [id, hidden] : hidden_) ids.push_back(id);
  for (const auto& [id, region] : regions_)
    if (region->is_freed) ids.push_back(id);
  return ids;
}

void Regions::let_go(uint64_t id) {
  const std::lock_guard lock(nics_mutex_);
  std::shared_ptr<Region> region;
  {
    const std::lock_guard table_lock(mutex_);
    const auto found = hidden_.find(id);
    if (found == hidden_.end()) return;  // another call for it was first
    region = std::move(found->second.region);
    hidden_.erase(found);
  }
  release(*region);
}

void Regions::release(const Region& region) {
  for (size_t i = 0; i < region.handles.size(); ++i)
    if (region.handles[i] != nullptr) nics_[i].domain->unregister(region.handles[i]);
  if (region.is_pinned) gpu_->unmap_host(region.base);
}

void Regions::release_all() {
  const std::lock_guard nics_lock(nics_mutex_);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, region] : regions_) release(*region);
  for (const auto& [id, hidden] : hidden_) release(*hidden.region);
  regions_.clear();
  hidden_.clear();
}

std::string Regions::text_of_freed(const Region& region) {
  return fmt::format("region {}: its memory, {} bytes at {}, {}", region.id, region.bytes,
                     static_cast<void*>(region.base), region.how_freed);
}

std::string Regions::why_gone(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  if (const auto freed = regions_.find(id); freed != regions_.end())
    return text_of_freed(*freed->second);
  const auto found =
      std::find_if(gone_.begin(), gone_.end(), [&](const Gone& gone) { return gone.id == id; });
  if (found == gone_.end()) return fmt::format("there is no region {}", id);
  return fmt::format("region {} was unregistered {:.1f} s ago", id,
                     static_cast<double>(now_ns() - found->at_ns) / 1e9);
}

}  // namespace braid::engine
