#include "engine/copier.h"

#include <algorithm>
#include <array>

#include "sys/host/api.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {
namespace {
constexpr size_t kRoundStretches = 1024;
constexpr size_t kGpuStretches = 8192;
}  // namespace

Copier::~Copier() {
  if (opened_.empty()) return;
  ground_.gpu->settle();  // what is mapped must not go while it is being read
  for (const Opened& opened : opened_) (void)ground_.gpu->cuda().close_ipc(opened.base);
}

Status Copier::lend(const Loan& loan) {
  if (ground_.gpu == nullptr)
    return unsupported("'{}' has no GPU (device=None), so it cannot reach memory of one",
                       ground_.self.name);
  Lent lent{loan.base, loan.bytes, loan.base};
  if (process_ != ground_.self.process) {
    sys::IpcHandle handle;
    std::copy_n(loan.handle.begin(), std::min(loan.handle.size(), handle.bytes.size()),
                handle.bytes.begin());
    auto known = std::find_if(opened_.begin(), opened_.end(),
                              [&](const Opened& o) { return o.handle == handle; });
    if (known == opened_.end()) {
      BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr base, ground_.gpu->cuda().open_ipc(handle));
      opened_.push_back({handle, base});
      known = opened_.end() - 1;
    }
    lent.address = known->base + loan.offset;
  }
  lent_[loan.region] = lent;
  return {};
}

Status Copier::check(const Stretch& s, const Region& region) const {
  if (s.target_offset <= region.bytes && s.bytes <= region.bytes - s.target_offset) return {};
  return invalid_argument("'{}': {} bytes at offset {} of region {}, which has {}",
                          ground_.self.name, s.bytes, s.target_offset, region.id, region.bytes);
}

Result<bool> Copier::advance(CopyOrder& order) {
  BRAID_ASSIGN_OR_RETURN(bool moved, land(order));
  if (order.begun == order.pull.stretches.size()) return moved;
  if (!is_wanted(order.pull))
    return cancelled("'{}': the source has taken it back", ground_.self.name);
  const std::shared_ptr<Region> region = ground_.regions.find(order.pull.region);
  if (region == nullptr)
    return invalid_argument("'{}': {}", ground_.self.name,
                            ground_.regions.why_gone(order.pull.region));
  Result<bool> begun = false;
  if (order.pull.source_region != 0) {
    const auto lent = lent_.find(order.pull.source_region);
    if (lent == lent_.end())
      return invalid_argument("'{}': region {} of the source was not lent", ground_.self.name,
                              order.pull.source_region);
    begun = copy_by_gpu(order, *region, lent->second);
  } else if (region->device < 0) {
    begun = copy_on_host(order, *region);
  } else {
    begun = order.is_fetch ? fetch_through_slot(order, *region) : pull_through_slot(order, *region);
  }
  if (!begun.ok()) return begun.status();
  return moved || *begun;
}

Result<bool> Copier::copy_on_host(CopyOrder& order, const Region& region) {
  // A slot's worth between two looks at the sockets, and of a long stretch only its beginning: the
  // worker that copied a large one at once would miss its beats, and be lost to all peers.
  BRAID_ASSIGN_OR_RETURN(const std::vector<InSlot> parts, fill_slot(order, region));
  std::array<sys::PeerCopy, kRoundStretches> copies;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Stretch& s = parts[i].stretch;
    copies[i] = {region.base + s.target_offset, s.source_address, parts[i].bytes};
  }
  const std::span<const sys::PeerCopy> all(copies.data(), parts.size());
  const Status moved =
      order.is_fetch ? sys::write_peer_memory(process_, all) : sys::read_peer_memory(process_, all);
  BRAID_RETURN_IF_ERROR(moved.with_context(fmt::format("'{}'", ground_.self.name)));
  take(order, parts);
  return true;
}

Result<bool> Copier::copy_by_gpu(CopyOrder& order, const Region& region, const Lent& lent) {
  if (region.address == 0)
    return unsupported(
        "'{}': region {} is memory of the host that the driver could not pin, so "
        "GPU {} cannot reach it",
        ground_.self.name, region.id, ground_.gpu->device());
  std::vector<PageCopy> copies(std::min(kGpuStretches, order.pull.stretches.size() - order.begun));
  for (size_t i = 0; i < copies.size(); ++i) {
    const Stretch& s = order.pull.stretches[order.begun + i];
    BRAID_RETURN_IF_ERROR(check(s, region));
    if (s.source_address < lent.base || s.bytes > lent.bytes ||
        s.source_address - lent.base > lent.bytes - s.bytes)
      return invalid_argument("'{}': {} bytes at {:#x} lie outside of what was lent",
                              ground_.self.name, s.bytes, s.source_address);
    const sys::DevicePtr there = lent.address + (s.source_address - lent.base);
    const sys::DevicePtr here = region.address + s.target_offset;
    copies[i] = order.is_fetch ? PageCopy{there, here, s.bytes} : PageCopy{here, there, s.bytes};
  }
  size_t begun = 0;
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(copies, begun));
  if (begun == 0) return false;
  order.begun += begun;
  order.mark = mark;
  return true;
}

/// As many of the stretches that are left as one slot holds, and one round copies: where each lies in
/// the slot.
Result<std::vector<Copier::InSlot>> Copier::fill_slot(const CopyOrder& order,
                                                      const Region& region) const {
  std::vector<InSlot> out;
  out.reserve(std::min(kRoundStretches, order.pull.stretches.size() - order.begun));
  uint64_t used = 0;
  for (size_t i = order.begun; i < order.pull.stretches.size() && out.size() < kRoundStretches;
       ++i) {
    const Stretch& s = order.pull.stretches[i];
    BRAID_RETURN_IF_ERROR(check(s, region));
    const uint64_t bytes = std::min(s.bytes, Gpu::kSlotBytes - used);
    if (bytes == 0 && s.bytes != 0) break;
    out.push_back({used, bytes, s});
    used += bytes;
  }
  return out;
}

/// Takes off the order what was begun of it; the last stretch may have a rest.
void Copier::take(CopyOrder& order, std::span<const InSlot> begun) {
  for (const InSlot& part : begun) {
    Stretch& s = order.pull.stretches[order.begun];
    s = {s.source_address + part.bytes, s.target_offset + part.bytes, s.bytes - part.bytes};
    if (s.bytes == 0) ++order.begun;
  }
}

Result<bool> Copier::pull_through_slot(CopyOrder& order, const Region& region) {
  Gpu::Slot* slot = ground_.gpu->free_slot();
  if (slot == nullptr) return false;
  BRAID_ASSIGN_OR_RETURN(const std::vector<InSlot> parts, fill_slot(order, region));
  std::vector<sys::PeerCopy> in;
  std::vector<PageCopy> out;
  for (const InSlot& part : parts) {
    in.push_back({slot->memory + part.offset, part.stretch.source_address, part.bytes});
    out.push_back(
        {region.address + part.stretch.target_offset, slot->address + part.offset, part.bytes});
  }
  BRAID_RETURN_IF_ERROR(sys::read_peer_memory(process_, in));
  size_t begun = 0;
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(out, begun));
  if (begun == 0) return false;
  slot->busy_until = order.mark = mark;
  take(order, std::span(parts).first(begun));
  return true;
}

Result<bool> Copier::fetch_through_slot(CopyOrder& order, const Region& region) {
  Gpu::Slot* slot = ground_.gpu->free_slot();
  if (slot == nullptr) return false;
  BRAID_ASSIGN_OR_RETURN(const std::vector<InSlot> parts, fill_slot(order, region));
  std::vector<PageCopy> out;
  for (const InSlot& part : parts)
    out.push_back(
        {slot->address + part.offset, region.address + part.stretch.target_offset, part.bytes});
  size_t begun = 0;
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(out, begun));
  if (begun == 0) return false;
  slot->is_held = true;
  slot->busy_until = order.mark = mark;
  CopyOrder::Landing landing{slot, mark, {}};
  for (const InSlot& part : std::span(parts).first(begun))
    landing.copies.push_back({slot->memory + part.offset, part.stretch.source_address, part.bytes});
  order.landings.push_back(std::move(landing));
  take(order, std::span(parts).first(begun));
  return true;
}

Result<bool> Copier::land(CopyOrder& order) const {
  if (order.landings.empty()) return false;
  BRAID_ASSIGN_OR_RETURN(const uint64_t done, ground_.gpu->done());
  bool moved = false;
  while (!order.landings.empty() && order.landings.front().mark <= done) {
    // The source may have ended it while we were stopped, and its memory be somebody else's by now.
    if (!is_wanted(order.pull))
      return cancelled("'{}': the source has taken it back", ground_.self.name);
    const CopyOrder::Landing landing = std::move(order.landings.front());
    order.landings.pop_front();
    landing.slot->is_held = false;
    BRAID_RETURN_IF_ERROR(sys::write_peer_memory(process_, landing.copies));
    moved = true;
  }
  return moved;
}

Result<bool> Copier::is_done(const CopyOrder& order) const {
  if (order.begun != order.pull.stretches.size() || !order.landings.empty()) return false;
  if (order.mark == 0) return true;
  BRAID_ASSIGN_OR_RETURN(const uint64_t done, ground_.gpu->done());
  return done >= order.mark;
}

bool Copier::is_wanted(const Pull& pull) const {
  uint64_t found = 0;
  const sys::PeerCopy word{reinterpret_cast<std::byte*>(&found), pull.word_address, sizeof found};
  return pull.word_address == 0 ||
         (sys::read_peer_memory(process_, {&word, 1}).ok() && found == pull.word);
}

void Copier::drop(CopyOrder& order) {
  for (const CopyOrder::Landing& landing : order.landings) landing.slot->is_held = false;
  order.landings.clear();
}

}  // namespace braid::engine
