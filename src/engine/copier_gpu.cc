// The copies of copier.h in which a GPU takes part: it makes them itself where the source has lent it
// memory of a GPU; else bytes go through pinned slots of the host.
#include <algorithm>
#include <limits>

#include "engine/copier.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {
namespace {
constexpr size_t kGpuStretches = 8192;
constexpr size_t kLongCopies = 64;  // of one call of the driver
// How many pages a launch has while the list is still being written: the first this many, each
// later one this many times what was begun before. A GPU copies a page of 8 KiB in 6 ns, a
// processor writes an entry of the list in 0.7 ns.
constexpr uint64_t kFirstPages = 8192;
constexpr uint64_t kTimesBegun = 7;
// Of one launch over PCIe, so that a cancel is heard soon.
constexpr uint64_t kMostFarBytes = 128 << 20;

bool is_long(std::span<const PageCopy> copies) {
  uint64_t bytes = 0;
  for (const PageCopy& copy : copies) bytes += copy.bytes;
  return !copies.empty() && bytes / copies.size() >= Gpu::kLongBytes;
}
}  // namespace

Result<bool> Copier::copy_by_gpu(CopyOrder& order, const Pairs& pairs) {
  for (const Pair& here : pairs)
    if (here.region->address == 0)
      return unsupported(
          "'{}': region {} is memory of the host that the driver could not pin, so "
          "GPU {} cannot reach it",
          ground_.self.name, here.region->id, ground_.gpu->device());
  if (order.pull.pages.count != 0) return copy_pages(order, pairs);
  return copy_stretches(order, *pairs.front().region, *pairs.front().lent);
}

Result<bool> Copier::copy_stretches(CopyOrder& order, const Region& region, const Lent& lent) {
  std::vector<PageCopy> copies(std::min(kGpuStretches, order.size() - order.begun));
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
  if (region.device >= 0 && is_long(copies)) return copy_long(order, copies);
  size_t begun = 0;
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(*queue_, copies, begun));
  if (begun == 0) return false;
  order.begun += begun;
  order.mark = mark;
  return true;
}

Result<bool> Copier::copy_long(CopyOrder& order, std::span<const PageCopy> copies) {
  copies = copies.first(std::min(kLongCopies, copies.size()));
  std::vector<sys::DeviceCopy> longs;
  for (const PageCopy& copy : copies)
    if (copy.bytes != 0) longs.push_back({copy.to, copy.from, copy.bytes});
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(*queue_, longs));
  if (mark == 0) return false;
  order.begun += copies.size();
  order.mark = mark;
  return true;
}

/// All of the list as one job: bases, strides, and which numbers are allowed in every plane.
Result<PageJob> Copier::job_of(const CopyOrder& order, const Pairs& pairs) const {
  const PageRun& run = order.pull.pages;
  uint32_t here_most = std::numeric_limits<uint32_t>::max(), there_most = here_most;
  PageJob job;
  for (const Plane& plane : order.pull.planes) {
    const auto& [region, lent] = pairs[job.num_planes];
    const auto most_here =
        highest_page(region->bytes, plane.target_offset, run.page_bytes, run.target_stride);
    const auto most_there = plane.source_address < lent->base
                                ? std::nullopt
                                : highest_page(lent->bytes, plane.source_address - lent->base,
                                               run.page_bytes, run.source_stride);
    if (!most_here || !most_there)
      return invalid_argument(
          "'{}': pages of {} bytes at offset {} of region {} ({} bytes), from {:#x} of what was "
          "lent ({} bytes at {:#x}): not even page 0 lies inside",
          ground_.self.name, run.page_bytes, plane.target_offset, region->id, region->bytes,
          plane.source_address, lent->bytes, lent->base);
    here_most = std::min(here_most, *most_here);
    there_most = std::min(there_most, *most_there);
    PlaneEnds& ends = job.planes[job.num_planes++];
    ends = {lent->address + (plane.source_address - lent->base),
            region->address + plane.target_offset};
    if (order.is_fetch) std::swap(ends.from, ends.to);
  }
  job.page_bytes = run.page_bytes;
  job.from_stride = run.source_stride;
  job.from_most = there_most;
  job.from_key = run.is_by_place != 0 ? PageKey::kPlace : PageKey::kSource;
  job.to_stride = run.target_stride;
  job.to_most = here_most;
  job.to_key = PageKey::kTarget;
  if (order.is_fetch) {
    std::swap(job.from_stride, job.to_stride);
    std::swap(job.from_most, job.to_most);
    std::swap(job.from_key, job.to_key);
  }
  return job;
}

// The same pages of all planes at a time: an entry of the list is read as soon as it is there.
Result<bool> Copier::copy_pages(CopyOrder& order, const Pairs& pairs) {
  const PageRun& run = order.pull.pages;
  const uint64_t num_planes = pairs.size(), begun = order.begun / num_planes;
  // A source that lies may say less than it has said before.
  const uint64_t there = num_listed(run);
  const uint64_t ready = there > begun ? there - begun : 0;
  const bool is_rest = begun + ready == run.count;
  const bool is_much = ready * num_planes >= std::max(kFirstPages, kTimesBegun * order.begun);
  if (ready == 0 || (!is_rest && !is_much)) return false;
  BRAID_ASSIGN_OR_RETURN(PageJob job, job_of(order, pairs));
  const bool is_near = pairs.front().region->device >= 0;
  const uint64_t parts_each = num_planes * ((run.page_bytes + kPartBytes - 1) / kPartBytes);
  uint64_t count = std::min(ready, std::max<uint64_t>(1, kMostJobParts / parts_each));
  if (!is_near)
    count = std::min(count, std::max<uint64_t>(1, kMostFarBytes / (num_planes * run.page_bytes)));
  job.count = static_cast<uint32_t>(count);
  job.first_place = static_cast<uint32_t>(begun);
  job.list = board_address_ + (run.list_at + begun) * sizeof(PageEntry);
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(*queue_, job, is_near));
  if (mark == 0) return false;
  order.begun += count * num_planes;
  order.mark = mark;
  order.list_marks.push_back(mark);
  return true;
}

Result<bool> Copier::pull_through_slot(CopyOrder& order, const Pairs& pairs) {
  Gpu::Slot* slot = ground_.gpu->free_slot();
  if (slot == nullptr) return false;
  BRAID_ASSIGN_OR_RETURN(const std::vector<InSlot> parts, fill_slot(order, pairs));
  if (parts.empty()) return false;
  std::vector<sys::PeerCopy> in;
  std::vector<PageCopy> out;
  for (const InSlot& part : parts) {
    in.push_back({slot->memory + part.offset, part.stretch.source_address, part.bytes});
    out.push_back({part.region->address + part.stretch.target_offset, slot->address + part.offset,
                   part.bytes});
  }
  BRAID_RETURN_IF_ERROR(sys::read_peer_memory(process_, in));
  size_t begun = 0;
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(*queue_, out, begun));
  if (begun == 0) return false;
  slot->busy_until = order.mark = mark;
  take(order, std::span(parts).first(begun));
  return true;
}

Result<bool> Copier::fetch_through_slot(CopyOrder& order, const Pairs& pairs) {
  Gpu::Slot* slot = ground_.gpu->free_slot();
  if (slot == nullptr) return false;
  BRAID_ASSIGN_OR_RETURN(const std::vector<InSlot> parts, fill_slot(order, pairs));
  if (parts.empty()) return false;
  std::vector<PageCopy> out;
  for (const InSlot& part : parts)
    out.push_back({slot->address + part.offset, part.region->address + part.stretch.target_offset,
                   part.bytes});
  size_t begun = 0;
  BRAID_ASSIGN_OR_RETURN(const uint64_t mark, ground_.gpu->begin(*queue_, out, begun));
  if (begun == 0) return false;
  slot->is_held = true;
  slot->busy_until = order.mark = mark;
  CopyOrder::FilledSlot filled{slot, mark, {}};
  for (const InSlot& part : std::span(parts).first(begun))
    filled.copies.push_back({slot->memory + part.offset, part.stretch.source_address, part.bytes});
  order.filled_slots.push_back(std::move(filled));
  take(order, std::span(parts).first(begun));
  return true;
}

Result<bool> Copier::land(CopyOrder& order) const {
  if (order.filled_slots.empty()) return false;
  BRAID_ASSIGN_OR_RETURN(const uint64_t done, ground_.gpu->done());
  bool moved = false;
  while (!order.filled_slots.empty() && order.filled_slots.front().mark <= done) {
    // The source may have ended it while we were stopped, and its memory be somebody else's by now.
    if (!is_wanted(order.pull))
      return cancelled("'{}': the source has taken it back", ground_.self.name);
    const CopyOrder::FilledSlot filled = std::move(order.filled_slots.front());
    order.filled_slots.pop_front();
    filled.slot->is_held = false;
    BRAID_RETURN_IF_ERROR(sys::write_peer_memory(process_, filled.copies));
    moved = true;
  }
  return moved;
}

}  // namespace braid::engine
