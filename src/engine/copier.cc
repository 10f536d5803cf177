#include "engine/copier.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sys/host/api.h"
#include "sys/peer_memory/api.h"

namespace braid::engine {
namespace {
constexpr size_t kRoundStretches = 1024;  // between two looks at the sockets

/// The regions as messages name them: "2", or "2, 3, 7".
std::string regions_of(const Pull& pull) {
  std::string out;
  for (const Plane& plane : pull.planes)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", plane.region);
  return out;
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
