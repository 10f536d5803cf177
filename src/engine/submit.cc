// Engine: transfers, checked by whoever asks for them and handed to the worker.
#include <algorithm>
#include <limits>
#include <optional>

#include "engine/engine.h"
#include "engine/worker.h"

namespace braid::engine {
namespace {

constexpr size_t kLeastListed = 16;  // pages; fewer go as stretches

bool is_within(uint64_t offset, uint64_t bytes, uint64_t whole) {
  return offset <= whole && bytes <= whole - offset;
}

Status check_ends(const char* what, const std::shared_ptr<Region>& local,
                  const RemoteRegion& remote) {
  if (local == nullptr) return invalid_argument("{}: it has no region of ours", what);
  if (remote == nullptr) return invalid_argument("{}: it has no region of a peer", what);
  return {};
}

/// A region as messages name it.
struct Named {
  uint64_t id = 0, bytes = 0;
  const std::string* owner = nullptr;  // null: ours
  std::string text() const {
    return owner == nullptr ? fmt::format("our region {}", id)
                            : fmt::format("region {} of '{}'", id, *owner);
  }
};

Named name(const Region& region) { return {region.id, region.bytes, nullptr}; }
Named name(const RegionDescriptor& region) { return {region.id, region.bytes, &region.owner.name}; }

Status check_spot(const char* what, const Named& region, uint64_t offset, uint64_t bytes) {
  if (is_within(offset, bytes, region.bytes)) return {};
  return invalid_argument("{}: {} bytes at offset {} of {}, which has {} bytes", what, bytes,
                          offset, region.text(), region.bytes);
}

Status check_page(const char* what, const Named& region, uint64_t index, uint64_t id,
                  uint64_t offset, uint64_t stride, uint64_t bytes) {
  const bool overflows =
      stride != 0 && id > (std::numeric_limits<uint64_t>::max() - offset) / stride;
  if (!overflows && is_within(offset + id * stride, bytes, region.bytes)) return {};
  return invalid_argument(
      "{}: page {} of the list, number {}, lies outside of {} ({} bytes a page, stride {}, offset "
      "{}, the region has {} bytes)",
      what, index, id, region.text(), bytes, stride, offset, region.bytes);
}

// An offset that is too large stays so.
uint64_t sum(uint64_t a, uint64_t b) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

// Neighbours on both sides travel as one; only with those from `begin` on.
void append(std::vector<Stretch>& out, size_t begin, const Stretch& next) {
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

/// One side of a list of pages, in one plane.
struct PageSide {
  uint64_t offset = 0, stride = 0, page_bytes = 0;
  Named region;
  uint64_t at(uint64_t id) const { return offset + id * stride; }

  /// Whether pages up to this number lie inside.
  bool holds(uint64_t most) const {
    const uint64_t whole = region.bytes;
    const bool has_page = offset <= whole && page_bytes <= whole - offset;
    return has_page && (stride == 0 || most <= (whole - offset - page_bytes) / stride);
  }
};

/// Numbers of pages on one side.
// The bits of all numbers together are no less than the highest: mostly one look at them is enough for
// all planes, and takes a quarter of a nanosecond a page.
class PageIds {
 public:
  explicit PageIds(std::span<const uint64_t> ids) : ids_(ids) {
    for (const uint64_t id : ids) bits_ |= id;
  }
  uint64_t bits() const { return bits_; }
  /// Whether all pages lie inside.
  Status check(const std::string& what, const PageSide& side) {
    if (ids_.empty() || side.holds(bits_)) return {};
    if (!most_) most_ = *std::max_element(ids_.begin(), ids_.end());
    if (side.holds(*most_)) return {};
    for (size_t i = 0; i < ids_.size(); ++i)
      BRAID_RETURN_IF_ERROR(check_page(what.c_str(), side.region, i, ids_[i], side.offset,
                                       side.stride, side.page_bytes));
    return {};
  }

 private:
  const std::span<const uint64_t> ids_;
  uint64_t bits_ = 0;
  std::optional<uint64_t> most_;
};

/// A list of pages as a connection has it: the requester's side, and the target's.
struct PageSides {
  std::span<const uint64_t> our_ids, their_ids;
  uint64_t page_bytes = 0;
  uint64_t our_stride = 0, their_stride = 0;
  std::vector<TransferPlane> planes;

  PageSide ours(size_t plane) const {
    return {planes[plane].our_offset, our_stride, page_bytes, name(*planes[plane].local)};
  }
  PageSide theirs(size_t plane) const {
    return {planes[plane].their_offset, their_stride, page_bytes, name(*planes[plane].remote)};
  }
  /// Of all planes, which then know where theirs end.
  std::vector<Stretch> cut() {
    std::vector<Stretch> all;
    all.reserve(our_ids.size() * planes.size());
    for (TransferPlane& plane : planes) {
      const size_t begin = all.size();
      for (size_t i = 0; i < our_ids.size(); ++i)
        append(all, begin,
               {plane.our_address() + our_ids[i] * our_stride,
                plane.their_offset + their_ids[i] * their_stride, page_bytes});
      plane.stretches_end = all.size();
    }
    return all;
  }
  PageRun run(const Listing& listing) const {
    PageRun out;
    out.count = listing.count();
    out.list_at = listing.at();
    out.page_bytes = page_bytes;
    out.source_stride = our_stride;
    out.target_stride = their_stride;
    return out;
  }
};

PageSides sides_of(Transfer::Kind kind, std::span<const PagePlane> planes, const PageList& list) {
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
                          sum(our_offset, is_read ? list.target_offset : list.source_offset),
                          sum(their_offset, is_read ? list.source_offset : list.target_offset)});
  return out;
}

/// What messages call a plane of a call: nothing, where there is one.
std::string name_plane(const char* what, size_t plane, size_t num_planes) {
  return num_planes == 1 ? what : fmt::format("{}: plane {}", what, plane);
}

const char* kind_of(int device) { return device < 0 ? "the host" : "a GPU"; }

/// That a call moves all planes one way.
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
                              name(*plane.theirs).text(), first.theirs->owner.name);
    if (plane.ours->device != first.ours->device)
      return invalid_argument("{}: plane {}: {} is memory of {}, that of plane 0 of {}", what, i,
                              name(*plane.ours).text(), kind_of(plane.ours->device),
                              kind_of(first.ours->device));
    if (plane.theirs->device != first.theirs->device)
      return invalid_argument("{}: plane {}: {} is memory of {}, that of plane 0 of {}", what, i,
                              name(*plane.theirs).text(), kind_of(plane.theirs->device),
                              kind_of(first.theirs->device));
  }
  return {};
}

/// That every page of every plane lies inside; the bits that their numbers have.
Result<uint64_t> check_pages(const char* what, const PageSides& sides) {
  PageIds ours(sides.our_ids), theirs(sides.their_ids);
  const size_t count = sides.planes.size();
  const auto named = [&](size_t plane) { return name_plane(what, plane, count); };
  for (size_t i = 0; i < count; ++i) {
    if (!sides.ours(i).holds(ours.bits()))
      BRAID_RETURN_IF_ERROR(ours.check(named(i), sides.ours(i)));
    if (!sides.theirs(i).holds(theirs.bits()))
      BRAID_RETURN_IF_ERROR(theirs.check(named(i), sides.theirs(i)));
  }
  return ours.bits() | theirs.bits();
}

const char* name_of(Transfer::Kind kind, bool has_pages) {
  if (kind == Transfer::Kind::kRead) return has_pages ? "read_pages" : "read";
  return has_pages ? "write_pages" : "write";
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
        name(*planes.front().theirs).text(), list.page_bytes, list.source_stride,
        list.target_stride);
  return {};
}

// A copy into such memory would end the process whose it is.
Status check_writable(const std::string& what, Transfer::Kind kind,
                      std::span<const TransferPlane> planes) {
  const bool is_read = kind == Transfer::Kind::kRead;
  for (const auto& [local, remote, ours, theirs, end] : planes)
    if (is_read ? local->is_read_only : remote->is_read_only)
      return invalid_argument("{}: {} was read-only memory when it was registered", what,
                              (is_read ? name(*local) : name(*remote)).text());
  return {};
}

}  // namespace

// All of them, or none.
Status Engine::begin_use(const std::string& what, std::span<const TransferPlane> planes) {
  for (size_t i = 0; i < planes.size(); ++i) {
    const Region& local = *planes[i].local;
    if (ground_.regions.begin_use(planes[i].local)) continue;
    for (const TransferPlane& before : planes.first(i)) --before.local->num_uses;
    return invalid_argument(
        "{}: {}", what,
        local.is_freed
            ? "our " + ground_.regions.why_gone(local.id)
            : fmt::format("our region {} was unregistered, or is another engine's", local.id));
  }
  return {};
}

Result<std::unique_ptr<Transfer>> Engine::make(Transfer::Kind kind, std::string what,
                                               std::vector<TransferPlane> planes,
                                               std::vector<Stretch> stretches,
                                               TransferOptions options) {
  if (options.notification.size() > kMostMessageBytes)
    return invalid_argument("{}: a notification of {} bytes, {} are the limit", what,
                            options.notification.size(), kMostMessageBytes);
  if (kind == Transfer::Kind::kRead && options.immediate)
    return invalid_argument("{}: a read has no immediate; a notification tells of its end", what);
  BRAID_RETURN_IF_ERROR(check_writable(what, kind, planes));
  if (planes.size() == 1) planes.front().stretches_end = stretches.size();
  BRAID_RETURN_IF_ERROR(begin_use(what, planes));
  TicketPtr ticket = ground_.ticket(std::move(what), next_transfer_++, std::move(options.callback));
  auto transfer =
      std::make_unique<Transfer>(kind, std::move(ticket), std::move(planes), std::move(stretches));
  Delivery& d = transfer->delivery;
  d.has_immediate = options.immediate.has_value();
  d.immediate = options.immediate.value_or(0);
  d.count = d.has_immediate ? 1 : 0;
  if (!options.notification.empty()) {
    d.kind = MessageKind::kNotification;
    d.message = std::move(options.notification);
  }
  const int64_t timeout_ns =
      options.timeout_ns != 0 ? options.timeout_ns : ground_.options.timeout_ns;
  constexpr int64_t kMostNs = std::numeric_limits<int64_t>::max() / 2;  // "for ever" is no overflow
  transfer->deadline_ns = now_ns() + std::min(timeout_ns, kMostNs);
  return transfer;
}

Result<TicketPtr> Engine::submit(const Address& target, std::unique_ptr<Transfer> transfer) {
  const Address* const targets[] = {&target};
  std::vector<std::unique_ptr<Transfer>> one;
  one.push_back(std::move(transfer));
  BRAID_ASSIGN_OR_RETURN(std::vector<TicketPtr> tickets, submit_all(targets, std::move(one)));
  return std::move(tickets.front());
}

// One call of the worker: what a part of them has begun could not be told to whoever gets an error.
Result<std::vector<TicketPtr>> Engine::submit_all(
    std::span<const Address* const> targets, std::vector<std::unique_ptr<Transfer>> transfers) {
  std::vector<TicketPtr> tickets;
  for (const auto& transfer : transfers) tickets.push_back(transfer->ticket);
  if (tickets.empty()) return tickets;
  const std::string& what = tickets.front()->what();
  const uint32_t most = ground_.options.most_transfers;
  const auto count = static_cast<uint32_t>(std::min<size_t>(tickets.size(), most));
  const bool has_room = (ground_.num_transfers += count) <= most && count == tickets.size();
  if (!has_room) {
    ground_.num_transfers -= count;
    return exhausted("{}: {} transfers are under way, which is the limit", what, most);
  }
  ground_.stats.transfers_begun += count;
  auto held = std::make_shared<std::vector<std::unique_ptr<Transfer>>>(std::move(transfers));
  std::vector<Address> where;
  for (const Address* target : targets) where.push_back(*target);
  const bool posted = worker_->post([where = std::move(where), held](Worker& worker) {
    for (size_t i = 0; i < held->size(); ++i)
      worker.source_for(where[i]).submit(std::move((*held)[i]));
  });
  if (!posted) return cancelled("{}: the engine is being closed", what);
  return tickets;
}

Result<std::unique_ptr<Transfer>> Engine::make_write(const LocalSpot& source,
                                                     const RemoteSpot& target, uint64_t bytes,
                                                     TransferOptions options) {
  BRAID_RETURN_IF_ERROR(check_ends("write", source.region, target.region));
  const Region& local = *source.region;
  const RegionDescriptor& remote = *target.region;
  BRAID_RETURN_IF_ERROR(check_spot("write", name(local), source.offset, bytes));
  BRAID_RETURN_IF_ERROR(check_spot("write", name(remote), target.offset, bytes));
  std::vector<Stretch> stretches;
  if (bytes != 0)
    stretches.push_back(
        {reinterpret_cast<uint64_t>(local.base) + source.offset, target.offset, bytes});
  return make(Transfer::Kind::kWrite,
              fmt::format("write of {} bytes to '{}'", bytes, remote.owner.name),
              {{source.region, target.region}}, std::move(stretches), std::move(options));
}

Result<TicketPtr> Engine::write(const LocalSpot& source, const RemoteSpot& target, uint64_t bytes,
                                TransferOptions options) {
  BRAID_ASSIGN_OR_RETURN(auto transfer, make_write(source, target, bytes, std::move(options)));
  return submit(target.region->owner, std::move(transfer));
}

Result<TicketPtr> Engine::read(const LocalSpot& target, const RemoteSpot& source, uint64_t bytes,
                               TransferOptions options) {
  BRAID_RETURN_IF_ERROR(check_ends("read", target.region, source.region));
  const Region& local = *target.region;
  const RegionDescriptor& remote = *source.region;
  BRAID_RETURN_IF_ERROR(check_spot("read", name(local), target.offset, bytes));
  BRAID_RETURN_IF_ERROR(check_spot("read", name(remote), source.offset, bytes));
  std::vector<Stretch> stretches;
  if (bytes != 0)
    stretches.push_back(
        {reinterpret_cast<uint64_t>(local.base) + target.offset, source.offset, bytes});
  BRAID_ASSIGN_OR_RETURN(
      auto transfer,
      make(Transfer::Kind::kRead,
           fmt::format("read of {} bytes from '{}'", bytes, remote.owner.name),
           {{target.region, source.region}}, std::move(stretches), std::move(options)));
  return submit(remote.owner, std::move(transfer));
}

Result<TicketPtr> Engine::pages(Transfer::Kind kind, std::span<const PagePlane> planes,
                                const PageList& list, TransferOptions options) {
  const char* what = name_of(kind, true);
  BRAID_RETURN_IF_ERROR(check_planes(what, planes));
  BRAID_RETURN_IF_ERROR(check_list(what, planes, list));
  PageSides sides = sides_of(kind, planes, list);
  BRAID_ASSIGN_OR_RETURN(const uint64_t bits, check_pages(what, sides));
  const Address& peer = planes.front().theirs->owner;
  const size_t all = sides.our_ids.size() * planes.size();
  std::shared_ptr<Listing> listing;
  if (const auto board = ground_.boards.find(peer.incarnation);
      board != nullptr && bits <= std::numeric_limits<uint32_t>::max() && all >= kLeastListed)
    listing = board->list(sides.our_ids.size());
  std::string words =
      fmt::format("{} of {} pages of {} bytes with '{}'", what, all, list.page_bytes, peer.name);
  std::vector<Stretch> stretches = listing == nullptr ? sides.cut() : std::vector<Stretch>();
  BRAID_ASSIGN_OR_RETURN(auto transfer, make(kind, std::move(words), std::move(sides.planes),
                                             std::move(stretches), std::move(options)));
  if (transfer->delivery.has_immediate) transfer->delivery.count = static_cast<uint32_t>(all);
  if (listing == nullptr) return submit(peer, std::move(transfer));
  transfer->listing = listing;
  transfer->pages = sides.run(*listing);
  transfer->bytes = all * list.page_bytes;
  BRAID_ASSIGN_OR_RETURN(TicketPtr ticket, submit(peer, std::move(transfer)));
  ground_.stats.pages_listed += all;
  // The target is told meanwhile, and begins with what is there.
  listing->write(sides.our_ids, sides.their_ids);
  return ticket;
}

Result<TicketPtr> Engine::write_pages(const std::shared_ptr<Region>& source,
                                      const RemoteRegion& target, const PageList& pages_in,
                                      TransferOptions options) {
  const PagePlane plane{source, target};
  return write_pages({&plane, 1}, pages_in, std::move(options));
}

Result<TicketPtr> Engine::read_pages(const std::shared_ptr<Region>& target,
                                     const RemoteRegion& source, const PageList& pages_in,
                                     TransferOptions options) {
  const PagePlane plane{target, source};
  return read_pages({&plane, 1}, pages_in, std::move(options));
}

Result<TicketPtr> Engine::write_pages(std::span<const PagePlane> planes, const PageList& pages_in,
                                      TransferOptions options) {
  return pages(Transfer::Kind::kWrite, planes, pages_in, std::move(options));
}

Result<TicketPtr> Engine::read_pages(std::span<const PagePlane> planes, const PageList& pages_in,
                                     TransferOptions options) {
  return pages(Transfer::Kind::kRead, planes, pages_in, std::move(options));
}

Result<TicketPtr> Engine::move_ranges(Transfer::Kind kind, const std::shared_ptr<Region>& local,
                                      const RemoteRegion& remote, std::span<const Range> ranges,
                                      TransferOptions options) {
  const char* what = name_of(kind, false);
  BRAID_RETURN_IF_ERROR(check_ends(what, local, remote));
  const uint64_t base = reinterpret_cast<uint64_t>(local->base);
  std::vector<Stretch> stretches;
  stretches.reserve(ranges.size());
  for (const auto& [ours, theirs, bytes] : ranges) {
    BRAID_RETURN_IF_ERROR(check_spot(what, name(*local), ours, bytes));
    BRAID_RETURN_IF_ERROR(check_spot(what, name(*remote), theirs, bytes));
    if (bytes != 0) append(stretches, 0, {base + ours, theirs, bytes});
  }
  BRAID_ASSIGN_OR_RETURN(
      auto transfer,
      make(kind, fmt::format("{} of {} ranges with '{}'", what, ranges.size(), remote->owner.name),
           {{local, remote}}, std::move(stretches), std::move(options)));
  if (transfer->delivery.has_immediate)
    transfer->delivery.count = static_cast<uint32_t>(ranges.size());
  return submit(remote->owner, std::move(transfer));
}

Result<std::vector<TicketPtr>> Engine::scatter(const std::shared_ptr<Region>& source,
                                               std::span<const ScatterPart> parts,
                                               const TransferOptions& options) {
  for (const ScatterPart& part : parts) {
    BRAID_RETURN_IF_ERROR(check_ends("scatter", source, part.target.region));
    BRAID_RETURN_IF_ERROR(check_spot("scatter", name(*source), part.source_offset, part.bytes));
    BRAID_RETURN_IF_ERROR(
        check_spot("scatter", name(*part.target.region), part.target.offset, part.bytes));
  }
  std::vector<std::unique_ptr<Transfer>> transfers;
  std::vector<const Address*> targets;
  for (const ScatterPart& part : parts) {
    BRAID_ASSIGN_OR_RETURN(
        auto transfer, make_write({source, part.source_offset}, part.target, part.bytes, options));
    transfers.push_back(std::move(transfer));
    targets.push_back(&part.target.region->owner);
  }
  return submit_all(targets, std::move(transfers));
}

Result<std::vector<TicketPtr>> Engine::signal(std::span<const Address> peers, uint32_t immediate,
                                              const TransferOptions& options) {
  std::vector<std::unique_ptr<Transfer>> transfers;
  std::vector<const Address*> targets;
  for (const Address& peer : peers) {
    TransferOptions one = options;
    one.immediate = immediate;
    BRAID_ASSIGN_OR_RETURN(
        auto transfer, make(Transfer::Kind::kWrite,
                            fmt::format("signal of immediate {} to '{}'", immediate, peer.name), {},
                            {}, std::move(one)));
    transfers.push_back(std::move(transfer));
    targets.push_back(&peer);
  }
  return submit_all(targets, std::move(transfers));
}

Result<TicketPtr> Engine::message(const Address& peer, MessageKind kind, std::string_view bytes,
                                  TransferOptions options) {
  if (bytes.size() > kMostMessageBytes)
    return invalid_argument("a message of {} bytes to '{}', {} are the limit", bytes.size(),
                            peer.name, kMostMessageBytes);
  options.notification.clear();
  BRAID_ASSIGN_OR_RETURN(
      auto transfer, make(Transfer::Kind::kWrite,
                          fmt::format("message of {} bytes to '{}'", bytes.size(), peer.name), {},
                          {}, std::move(options)));
  transfer->delivery.kind = kind;
  transfer->delivery.message = bytes;
  return submit(peer, std::move(transfer));
}

Result<TicketPtr> Engine::send(const Address& peer, std::string_view bytes,
                               TransferOptions options) {
  return message(peer, MessageKind::kMessage, bytes, std::move(options));
}

Result<TicketPtr> Engine::notify(const Address& peer, std::string_view bytes,
                                 TransferOptions options) {
  return message(peer, MessageKind::kNotification, bytes, std::move(options));
}

Result<TicketPtr> Engine::connect(const Address& peer, TransferOptions options) {
  return message(peer, MessageKind::kNone, "", std::move(options));
}

}  // namespace braid::engine
