#include "engine/page_sides.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace braid::engine {
namespace {

constexpr uint64_t kMostOffset = std::numeric_limits<uint64_t>::max();

// An offset that is too large stays so.
uint64_t sum_of(uint64_t a, uint64_t b) { return a > kMostOffset - b ? kMostOffset : a + b; }

/// The numbers of the pages of one side.
// The bits of all numbers together are no less than the highest number: one look at them is mostly
// enough for all planes, and takes a quarter of a nanosecond a page.
class PageIds {
 public:
  explicit PageIds(std::span<const uint64_t> ids) : ids_(ids) {
    for (const uint64_t id : ids) bits_ |= id;
  }
  uint64_t bits() const { return bits_; }

  /// That all pages lie inside.
  Status check(const std::string& what, const PageSide& side) {
    if (ids_.empty() || side.holds(bits_)) return {};
    if (!std::exchange(is_most_found_, true)) most_ = *std::max_element(ids_.begin(), ids_.end());
    if (side.holds(most_)) return {};
    for (size_t i = 0; i < ids_.size(); ++i)
      BRAID_RETURN_IF_ERROR(side.check_page(what, i, ids_[i]));
    return {};
  }

 private:
  const std::span<const uint64_t> ids_;
  uint64_t bits_ = 0;
  bool is_most_found_ = false;
  uint64_t most_ = 0;
};

/// What messages call a plane of a call: as the call, where there is one plane.
std::string name_plane(const char* what, size_t plane, size_t num_planes) {
  return num_planes == 1 ? what : fmt::format("{}: plane {}", what, plane);
}

const char* kind_of(int device) { return device < 0 ? "the host" : "a GPU"; }

Status check_device(const char* what, size_t plane, const RegionName& region, int device,
                    int first_device) {
  if (device == first_device) return {};
  return invalid_argument("{}: plane {}: {} is memory of {}, that of plane 0 of {}", what, plane,
                          region.text(), kind_of(device), kind_of(first_device));
}

/// That one call can move all planes.
Status check_planes(const char* what, std::span<const PagePlane> planes) {
  if (planes.empty() || planes.size() > kMostPlanes)
    return invalid_argument("{}: asked for 1 to {} planes, found {}", what, kMostPlanes,
                            planes.size());
  for (size_t i = 0; i < planes.size(); ++i) {
    const PagePlane &plane = planes[i], &first = planes.front();
    if (plane.ours == nullptr || plane.theirs == nullptr)
      return check_ends(name_plane(what, i, planes.size()).c_str(), plane.ours, plane.theirs);
    if (plane.theirs->owner.incarnation != first.theirs->owner.incarnation)
      return invalid_argument("{}: plane {}: {} is not of the peer of plane 0, '{}'", what, i,
                              RegionName(*plane.theirs).text(), first.theirs->owner.name);
    BRAID_RETURN_IF_ERROR(
        check_device(what, i, RegionName(*plane.ours), plane.ours->device, first.ours->device));
    BRAID_RETURN_IF_ERROR(check_device(what, i, RegionName(*plane.theirs), plane.theirs->device,
                                       first.theirs->device));
  }
  return {};
}

Status check_list(const char* what, std::span<const PagePlane> planes, const PageList& list) {
  if (list.source_ids.size() != list.target_ids.size())
    return invalid_argument("{}: {} pages of the source, {} of the target", what,
                            list.source_ids.size(), list.target_ids.size());
  if (list.page_bytes == 0 && !list.source_ids.empty())
    return invalid_argument("{}: pages of 0 bytes", what);
  const uint64_t all = list.source_ids.size() * planes.size();
  if (all > std::numeric_limits<uint32_t>::max())
    return invalid_argument("{}: {} pages, more than a count holds", what, all);
  const bool overlaps = (list.target_stride != 0 && list.target_stride < list.page_bytes) ||
                        (list.source_stride != 0 && list.source_stride < list.page_bytes);
  if (overlaps)
    return invalid_argument(
        "{}, {}: pages of {} bytes overlap with strides of {} (source) and {} (target)", what,
        RegionName(*planes.front().theirs).text(), list.page_bytes, list.source_stride,
        list.target_stride);
  return {};
}

}  // namespace

bool PageSide::holds(uint64_t most) const {
  if (!is_within(offset, page_bytes, region.bytes)) return false;
  return stride == 0 || most <= (region.bytes - offset - page_bytes) / stride;
}

Status PageSide::check_page(const std::string& what, size_t index, uint64_t id) const {
  const bool overflows = stride != 0 && id > (kMostOffset - offset) / stride;
  if (!overflows && is_within(offset + id * stride, page_bytes, region.bytes)) return {};
  return invalid_argument(
      "{}: page {} of the list, number {}, lies outside of {} ({} bytes a page, stride {}, offset "
      "{}, the region has {} bytes)",
      what, index, id, region.text(), page_bytes, stride, offset, region.bytes);
}

Result<PageSides> PageSides::of(const char* what, Transfer::Kind kind,
                                std::span<const PagePlane> planes, const PageList& list) {
  BRAID_RETURN_IF_ERROR(check_planes(what, planes));
  BRAID_RETURN_IF_ERROR(check_list(what, planes, list));
  const uint64_t source_stride = list.source_stride != 0 ? list.source_stride : list.page_bytes;
  const uint64_t target_stride = list.target_stride != 0 ? list.target_stride : list.page_bytes;
  const bool is_read = kind == Transfer::Kind::kRead;
  PageSides out;
  out.page_bytes = list.page_bytes;
  out.our_ids = is_read ? list.target_ids : list.source_ids;
  out.their_ids = is_read ? list.source_ids : list.target_ids;
  out.our_stride = is_read ? target_stride : source_stride;
  out.their_stride = is_read ? source_stride : target_stride;
  out.planes.reserve(planes.size());
  for (const auto& [ours, theirs, our_offset, their_offset] : planes)
    out.planes.push_back({ours, theirs,
                          sum_of(our_offset, is_read ? list.target_offset : list.source_offset),
                          sum_of(their_offset, is_read ? list.source_offset : list.target_offset)});
  return out;
}

Result<uint64_t> PageSides::check(const char* what) const {
  PageIds our_pages(our_ids), their_pages(their_ids);
  for (size_t i = 0; i < planes.size(); ++i) {
    // A name takes longer to make than most planes to check.
    if (!ours(i).holds(our_pages.bits()))
      BRAID_RETURN_IF_ERROR(our_pages.check(name_plane(what, i, planes.size()), ours(i)));
    if (!theirs(i).holds(their_pages.bits()))
      BRAID_RETURN_IF_ERROR(their_pages.check(name_plane(what, i, planes.size()), theirs(i)));
  }
  return our_pages.bits() | their_pages.bits();
}

PageSide PageSides::ours(size_t plane) const {
  return {planes[plane].our_offset, our_stride, page_bytes, RegionName(*planes[plane].local)};
}

PageSide PageSides::theirs(size_t plane) const {
  return {planes[plane].their_offset, their_stride, page_bytes, RegionName(*planes[plane].remote)};
}

std::vector<Stretch> PageSides::cut() {
  std::vector<Stretch> all;
  all.reserve(num_pages());
  for (TransferPlane& plane : planes) {
    const size_t begin = all.size();
    for (size_t i = 0; i < our_ids.size(); ++i)
      append_stretch(all, begin,
                     {plane.our_address() + our_ids[i] * our_stride,
                      plane.their_offset + their_ids[i] * their_stride, page_bytes});
    plane.stretches_end = all.size();
  }
  return all;
}

PageRun PageSides::run(const Listing& listing) const {
  PageRun out;
  out.count = listing.count();
  out.list_at = listing.at();
  out.page_bytes = page_bytes;
  out.source_stride = our_stride;
  out.target_stride = their_stride;
  return out;
}

void append_stretch(std::vector<Stretch>& out, size_t begin, const Stretch& next) {
  if (out.size() > begin) {
    Stretch& last = out.back();
    if (last.source_address + last.bytes == next.source_address &&
        last.target_offset + last.bytes == next.target_offset) {
      last.bytes += next.bytes;
      return;
    }
  }
  out.push_back(next);
}

}  // namespace braid::engine
