// Engine: transfers, checked by whoever asks for them and handed to the worker.
#include <algorithm>
#include <limits>

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

// Neighbours on both sides travel as one.
void append(std::vector<Stretch>& out, const Stretch& next) {
  if (!out.empty()) {
    Stretch& last = out.back();
    if (last.source_address + last.bytes == next.source_address &&
        last.target_offset + last.bytes == next.target_offset) {
      last.bytes += next.bytes;
      return;
    }
  }
  out.push_back(next);
}

/// One side of a list of pages.
struct PageSide {
  std::span<const uint64_t> ids;
  uint64_t offset = 0, stride = 0, page_bytes = 0;
  Named region;
  uint64_t at(size_t i) const { return offset + ids[i] * stride; }

  /// Whether all lie inside; the bits that their numbers have.
  // The bits of all numbers together are no less than the highest: mostly one look at them is
  // enough, and takes a quarter of a nanosecond a page.
  Result<uint64_t> check(const char* what) const {
    uint64_t bits = 0;
    for (const uint64_t id : ids) bits |= id;
    const uint64_t whole = region.bytes;
    const bool has_page = offset <= whole && page_bytes <= whole - offset;
    if (has_page && stride != 0 && bits <= (whole - offset - page_bytes) / stride) return bits;
    for (size_t i = 0; i < ids.size(); ++i)
      BRAID_RETURN_IF_ERROR(check_page(what, region, i, ids[i], offset, stride, page_bytes));
    return bits;
  }
};

/// Both, as a connection has them: the requester's, and the target's.
struct PageSides {
  PageSide ours, theirs;
  uint64_t base = 0;  // of our region

  std::vector<Stretch> stretches() const {
    std::vector<Stretch> out;
    out.reserve(ours.ids.size());
    for (size_t i = 0; i < ours.ids.size(); ++i)
      append(out, {base + ours.at(i), theirs.at(i), ours.page_bytes});
    return out;
  }
  PageRun run(const Listing& listing) const {
    PageRun out;
    out.count = listing.count();
    out.list_at = listing.at();
    out.page_bytes = ours.page_bytes;
    out.source_address = base + ours.offset;
    out.source_stride = ours.stride;
    out.target_offset = theirs.offset;
    out.target_stride = theirs.stride;
    return out;
  }
};

PageSides sides_of(Transfer::Kind kind, const Region& local, const RegionDescriptor& remote,
                   const PageList& list) {
  PageSide source{list.source_ids, list.source_offset, list.source_stride, list.page_bytes, {}};
  PageSide target{list.target_ids, list.target_offset, list.target_stride, list.page_bytes, {}};
  for (PageSide* side : {&source, &target})
    if (side->stride == 0) side->stride = list.page_bytes;
  const bool is_read = kind == Transfer::Kind::kRead;
  PageSides out{is_read ? target : source, is_read ? source : target,
                reinterpret_cast<uint64_t>(local.base)};
  out.ours.region = name(local);
  out.theirs.region = name(remote);
  return out;
}

const char* name_of(Transfer::Kind kind, bool has_pages) {
  if (kind == Transfer::Kind::kRead) return has_pages ? "read_pages" : "read";
  return has_pages ? "write_pages" : "write";
}

Status check_list(const char* what, const RegionDescriptor& remote, const PageList& list) {
  if (list.source_ids.size() != list.target_ids.size())
    return invalid_argument("{}: {} pages of the source, {} of the target", what,
                            list.source_ids.size(), list.target_ids.size());
  if (list.page_bytes == 0 && !list.source_ids.empty())
    return invalid_argument("{}: pages of 0 bytes", what);
  if (list.source_ids.size() > std::numeric_limits<uint32_t>::max())
    return invalid_argument("{}: {} pages, more than a count holds", what, list.source_ids.size());
  const bool overlaps = (list.target_stride != 0 && list.target_stride < list.page_bytes) ||
                        (list.source_stride != 0 && list.source_stride < list.page_bytes);
  if (overlaps)
    return invalid_argument(
        "{}, {}: pages of {} bytes overlap with strides of {} (source) and {} (target)", what,
        name(remote).text(), list.page_bytes, list.source_stride, list.target_stride);
  return {};
}

}  // namespace

Result<std::unique_ptr<Transfer>> Engine::make(Transfer::Kind kind, std::string what,
                                               std::shared_ptr<Region> local, RemoteRegion remote,
                                               std::vector<Stretch> stretches,
                                               TransferOptions options) {
  if (options.notification.size() > kMostMessageBytes)
    return invalid_argument("{}: a notification of {} bytes, {} are the limit", what,
                            options.notification.size(), kMostMessageBytes);
  if (kind == Transfer::Kind::kRead && options.immediate)
    return invalid_argument("{}: a read has no immediate; a notification tells of its end", what);
  if (local != nullptr && !ground_.regions.begin_use(local))
    return invalid_argument(
        "{}: {}", what,
        local->is_freed
            ? "our " + ground_.regions.why_gone(local->id)
            : fmt::format("our region {} was unregistered, or is another engine's", local->id));
  TicketPtr ticket = ground_.ticket(std::move(what), next_transfer_++, std::move(options.callback));
  auto transfer = std::make_unique<Transfer>(kind, std::move(ticket), std::move(local),
                                             std::move(remote), std::move(stretches));
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
              fmt::format("write of {} bytes to '{}'", bytes, remote.owner.name), source.region,
              target.region, std::move(stretches), std::move(options));
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
      auto transfer, make(Transfer::Kind::kRead,
                          fmt::format("read of {} bytes from '{}'", bytes, remote.owner.name),
                          target.region, source.region, std::move(stretches), std::move(options)));
  return submit(remote.owner, std::move(transfer));
}

Result<TicketPtr> Engine::pages(Transfer::Kind kind, const std::shared_ptr<Region>& local,
                                const RemoteRegion& remote, const PageList& list,
                                TransferOptions options) {
  const char* what = name_of(kind, true);
  BRAID_RETURN_IF_ERROR(check_ends(what, local, remote));
  BRAID_RETURN_IF_ERROR(check_list(what, *remote, list));
  const PageSides sides = sides_of(kind, *local, *remote, list);
  BRAID_ASSIGN_OR_RETURN(const uint64_t our_bits, sides.ours.check(what));
  BRAID_ASSIGN_OR_RETURN(const uint64_t their_bits, sides.theirs.check(what));
  std::shared_ptr<Listing> listing;
  if (const auto board = ground_.boards.find(remote->owner.incarnation);
      board != nullptr && (our_bits | their_bits) <= std::numeric_limits<uint32_t>::max() &&
      list.source_ids.size() >= kLeastListed)
    listing = board->list(list.source_ids.size());
  BRAID_ASSIGN_OR_RETURN(
      auto transfer,
      make(kind,
           fmt::format("{} of {} pages of {} bytes with '{}'", what, list.source_ids.size(),
                       list.page_bytes, remote->owner.name),
           local, remote, listing == nullptr ? sides.stretches() : std::vector<Stretch>(),
           std::move(options)));
  if (transfer->delivery.has_immediate)
    transfer->delivery.count = static_cast<uint32_t>(list.source_ids.size());
  if (listing == nullptr) return submit(remote->owner, std::move(transfer));
  transfer->listing = listing;
  transfer->pages = sides.run(*listing);
  transfer->bytes = list.source_ids.size() * list.page_bytes;
  BRAID_ASSIGN_OR_RETURN(TicketPtr ticket, submit(remote->owner, std::move(transfer)));
  ground_.stats.pages_listed += listing->count();
  // The target is told meanwhile, and begins with what is there.
  listing->write(sides.ours.ids, sides.theirs.ids);
  return ticket;
}

Result<TicketPtr> Engine::write_pages(const std::shared_ptr<Region>& source,
                                      const RemoteRegion& target, const PageList& pages_in,
                                      TransferOptions options) {
  return pages(Transfer::Kind::kWrite, source, target, pages_in, std::move(options));
}

Result<TicketPtr> Engine::read_pages(const std::shared_ptr<Region>& target,
                                     const RemoteRegion& source, const PageList& pages_in,
                                     TransferOptions options) {
  return pages(Transfer::Kind::kRead, target, source, pages_in, std::move(options));
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
    if (bytes != 0) append(stretches, {base + ours, theirs, bytes});
  }
  BRAID_ASSIGN_OR_RETURN(
      auto transfer,
      make(kind, fmt::format("{} of {} ranges with '{}'", what, ranges.size(), remote->owner.name),
           local, remote, std::move(stretches), std::move(options)));
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
    BRAID_ASSIGN_OR_RETURN(auto transfer,
                           make(Transfer::Kind::kWrite,
                                fmt::format("signal of immediate {} to '{}'", immediate, peer.name),
                                nullptr, nullptr, {}, std::move(one)));
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
  BRAID_ASSIGN_OR_RETURN(auto transfer,
                         make(Transfer::Kind::kWrite,
                              fmt::format("message of {} bytes to '{}'", bytes.size(), peer.name),
                              nullptr, nullptr, {}, std::move(options)));
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
