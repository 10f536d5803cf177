#include "engine/copier.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sys/host/api.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {
namespace {
constexpr size_t kRoundStretches = 1024;
constexpr size_t kGpuStretches = 8192;
constexpr size_t kLongCopies = 64;  // of one call of the driver
// How many pages a launch has while the list is still being written: the first this many, each
// later one this many times what was begun before. A GPU copies a page of 8 KiB in 6 ns, a
// processor writes an entry of the list in 0.7 ns.
constexpr uint64_t kFirstPages = 8192;
constexpr uint64_t kTimesBegun = 7;
constexpr uint64_t kMostFarBytes =
    128 << 20;  // of one launch over PCIe, so that a cancel is heard soon

/// The regions as messages name them: "2", or "2, 3, 7".
std::string regions_of(const Pull& pull) {
  std::string out;
  for (const Plane& plane : pull.planes)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", plane.region);
  return out;
}

bool is_long(std::span<const PageCopy> copies) {
  uint64_t bytes = 0;
  for (const PageCopy& copy : copies) bytes += copy.bytes;
  return !copies.empty() && bytes / copies.size() >= Gpu::kLongBytes;
}
}  // namespace

std::optional<uint32_t> highest_page(uint64_t whole, uint64_t offset, uint64_t page_bytes,
                                     uint64_t stride) {
  if (offset > whole || page_bytes > whole - offset) return {};
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  const uint64_t room = whole - offset - page_bytes;
  return static_cast<uint32_t>(stride == 0 ? kMost : std::min(kMost, room / stride));
}

Copier::~Copier() {
  if (opened_.empty() && board_address_ == 0) return;
  ground_.gpu->settle();  // what is mapped must not go while it is being read
  for (const Opened& opened : opened_) (void)ground_.gpu->cuda().close_ipc(opened.base);
  if (board_address_ != 0) ground_.gpu->unmap_host(board_.data());
}

Status Copier::open_board(const BoardOffer& offer) {
  if (board_.is_open()) return invalid_argument("a second board");
  BRAID_ASSIGN_OR_RETURN(BoardView board, BoardView::open(process_, offer.fd, offer.bytes));
  if (ground_.gpu != nullptr) {
    board_address_ = ground_.gpu->map_host(board.data(), board.bytes());
    if (board_address_ == 0) return unavailable("the driver cannot pin it");
  }
  board_ = std::move(board);
  return {};
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
  const PageRun& pages = order.pull.pages;  // of any count, which times the planes may be 0
  if (pages.count != 0 && (!board_.is_open() || !board_.holds(pages.list_at, pages.count)))
    return invalid_argument("'{}': a list of {} pages at {} of a board that has {} bytes",
                            ground_.self.name, pages.count, pages.list_at, board_.bytes());
  if (!order.has_rest()) return moved;
  if (!is_wanted(order.pull))
    return cancelled("'{}': the source has taken it back", ground_.self.name);
  BRAID_ASSIGN_OR_RETURN(const Pairs pairs, find(order.pull));
  BRAID_ASSIGN_OR_RETURN(const bool begun, begin(order, pairs));
  return moved || begun;
}

Result<bool> Copier::begin(CopyOrder& order, const Pairs& pairs) {
  const Pair& first = pairs.front();
  if (first.lent == nullptr && first.region->device < 0) return copy_on_host(order, pairs);
  if (!queue_) {
    BRAID_ASSIGN_OR_RETURN(queue_, ground_.gpu->next_queue());
  }
  if (first.lent != nullptr) return copy_by_gpu(order, pairs);
  return order.is_fetch ? fetch_through_slot(order, pairs) : pull_through_slot(order, pairs);
}

/// All planes, which go the same way.
Result<Copier::Pairs> Copier::find(const Pull& pull) const {
  Pairs out;
  out.reserve(pull.planes.size());
  for (const Plane& plane : pull.planes) {
    Pair here{ground_.regions.find(plane.region)};
    if (here.region == nullptr)
      return invalid_argument("'{}': {}", ground_.self.name,
                              ground_.regions.why_gone(plane.region));
    if (plane.source_region != 0) {
      const auto lent = lent_.find(plane.source_region);
      if (lent == lent_.end())
        return invalid_argument("'{}': region {} of the source was not lent", ground_.self.name,
                                plane.source_region);
      here.lent = &lent->second;
    }
    const Pair& first = out.empty() ? here : out.front();
    if ((here.lent == nullptr) != (first.lent == nullptr) ||
        here.region->device != first.region->device)
      return invalid_argument("'{}': a pull between memory of several kinds: regions {} and {}",
                              ground_.self.name, first.region->id, here.region->id);
    out.push_back(std::move(here));
  }
  if (out.empty()) return invalid_argument("'{}': a pull of no region", ground_.self.name);
  return out;
}

Result<bool> Copier::copy_on_host(CopyOrder& order, const Pairs& pairs) {
  // A slot's worth between two looks at the sockets, and of a long stretch only its beginning: the
  // worker that copied a large one at once would miss its beats, and be lost to all peers.
  BRAID_ASSIGN_OR_RETURN(const std::vector<InSlot> parts, fill_slot(order, pairs));
  if (parts.empty()) return false;
  std::array<sys::PeerCopy, kRoundStretches> copies;
  size_t count = 0;
  for (const InSlot& part : parts) {
    const Stretch& s = part.stretch;
    std::byte* const here = part.region->base + s.target_offset;
    // Pages that are neighbours on both sides are one copy.
    if (sys::PeerCopy* const last = count != 0 ? &copies[count - 1] : nullptr;
        last != nullptr && last->local + last->bytes == here &&
        last->peer_address + last->bytes == s.source_address)
      last->bytes += part.bytes;
    else
      copies[count++] = {here, s.source_address, part.bytes};
  }
  const std::span<const sys::PeerCopy> all(copies.data(), count);
  const Status moved =
      order.is_fetch ? sys::write_peer_memory(process_, all) : sys::read_peer_memory(process_, all);
  if (!moved.ok()) ground_.regions.note_freed();
  for (const InSlot& part : parts)
    if (!moved.ok() && part.region->is_freed)
      return invalid_argument("'{}': {}", ground_.self.name,
                              ground_.regions.why_gone(part.region->id));
  BRAID_RETURN_IF_ERROR(moved.with_context(fmt::format("'{}'", ground_.self.name)));
  take(order, parts);
  return true;
}

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

// To be pulled by place, pages were gathered by their list, so all of the list is there.
uint64_t Copier::num_listed(const PageRun& run) const {
  return run.is_by_place != 0 ? run.count : board_.num_ready(run.list_at, run.count);
}

size_t Copier::num_ready(const CopyOrder& order) const {
  const PageRun& run = order.pull.pages;
  if (run.count == 0) return order.size();
  const uint64_t listed = num_listed(run);
  return listed == run.count ? order.size() : listed;  // of the first plane
}

Result<Stretch> Copier::stretch(const CopyOrder& order, size_t number, const Pairs& pairs) const {
  Stretch out;
  if (const PageRun& run = order.pull.pages; run.count != 0) {
    const Plane& plane = order.pull.planes[number / run.count];
    const Region& region = *pairs[number / run.count].region;
    const uint64_t place = number % run.count;
    const PageEntry entry = board_.entry(run.list_at + place);
    const auto most =
        highest_page(region.bytes, plane.target_offset, run.page_bytes, run.target_stride);
    if (!most || entry.target > *most)
      return invalid_argument("'{}': page {} of {} bytes lies outside of region {}, which has {}",
                              ground_.self.name, entry.target, run.page_bytes, region.id,
                              region.bytes);
    const uint64_t source = run.is_by_place != 0 ? place : entry.source;
    out = {plane.source_address + source * run.source_stride,
           plane.target_offset + entry.target * run.target_stride, run.page_bytes};
  } else {
    out = order.pull.stretches[number];
    BRAID_RETURN_IF_ERROR(check(out, *pairs.front().region));
  }
  if (number != order.begun) return out;
  const uint64_t begun = order.begun_bytes;
  return Stretch{out.source_address + begun, out.target_offset + begun, out.bytes - begun};
}

/// The next stretches, as many as one slot holds and one round copies, with the place of each in
/// the slot.
Result<std::vector<Copier::InSlot>> Copier::fill_slot(const CopyOrder& order,
                                                      const Pairs& pairs) const {
  const size_t ready = num_ready(order);
  std::vector<InSlot> out;
  out.reserve(std::min(kRoundStretches, ready - order.begun));
  uint64_t used = 0;
  for (size_t i = order.begun; i < ready && out.size() < kRoundStretches; ++i) {
    BRAID_ASSIGN_OR_RETURN(const Stretch s, stretch(order, i, pairs));
    const uint64_t bytes = std::min(s.bytes, Gpu::kSlotBytes - used);
    if (bytes == 0 && s.bytes != 0) break;
    const size_t plane = order.pull.pages.count != 0 ? i / order.pull.pages.count : 0;
    out.push_back({used, bytes, s, pairs[plane].region.get()});
    used += bytes;
  }
  return out;
}

/// Takes off the order what was begun of it; the last stretch may have a rest.
void Copier::take(CopyOrder& order, std::span<const InSlot> begun) {
  for (const InSlot& part : begun) {
    const bool is_whole = part.bytes == part.stretch.bytes;
    order.begun_bytes = is_whole ? 0 : order.begun_bytes + part.bytes;
    if (is_whole) ++order.begun;
  }
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

Result<bool> Copier::is_done(const CopyOrder& order) const {
  if (order.has_rest() || !order.filled_slots.empty()) return false;
  if (order.mark == 0) return true;
  BRAID_ASSIGN_OR_RETURN(const uint64_t done, ground_.gpu->done());
  if (done < order.mark) return false;
  const bool had_trouble = std::any_of(order.list_marks.begin(), order.list_marks.end(),
                                       [&](uint64_t m) { return ground_.gpu->had_trouble(m); });
  if (had_trouble)
    return invalid_argument(
        "'{}': a page of {} bytes lies outside of region {} or of what was lent", ground_.self.name,
        order.pull.pages.page_bytes, regions_of(order.pull));
  return true;
}

bool Copier::is_wanted(const Pull& pull) const {
  uint64_t found = 0;
  const sys::PeerCopy word{reinterpret_cast<std::byte*>(&found), pull.word_address, sizeof found};
  return pull.word_address == 0 ||
         (sys::read_peer_memory(process_, {&word, 1}).ok() && found == pull.word);
}

void Copier::answer(const Pull& pull) const {
  if (pull.pages.count != 0 && pull.pages.is_by_place == 0 && board_.is_open() &&
      board_.holds(pull.pages.list_at, pull.pages.count))
    board_.answer(pull.pages.list_at, pull.word);
}

void Copier::drop(CopyOrder& order) {
  for (const CopyOrder::FilledSlot& filled : order.filled_slots) filled.slot->is_held = false;
  order.filled_slots.clear();
}

}  // namespace braid::engine
