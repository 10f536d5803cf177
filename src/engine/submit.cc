// Engine: transfers, checked by whoever asks for them and handed to the worker.
#include <algorithm>
#include <limits>

#include "engine/checks.h"
#include "engine/engine.h"
#include "engine/page_sides.h"
#include "engine/worker.h"

namespace braid::engine {
namespace {

constexpr size_t kLeastListed = 16;  // pages; fewer go as stretches

const char* name_of(Transfer::Kind kind, bool has_pages) {
  if (kind == Transfer::Kind::kRead) return has_pages ? "read_pages" : "read";
  return has_pages ? "write_pages" : "write";
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
  BRAID_RETURN_IF_ERROR(check_spot("write", RegionName(local), source.offset, bytes));
  BRAID_RETURN_IF_ERROR(check_spot("write", RegionName(remote), target.offset, bytes));
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
  BRAID_RETURN_IF_ERROR(check_spot("read", RegionName(local), target.offset, bytes));
  BRAID_RETURN_IF_ERROR(check_spot("read", RegionName(remote), source.offset, bytes));
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
  BRAID_ASSIGN_OR_RETURN(PageSides sides, PageSides::of(what, kind, planes, list));
  BRAID_ASSIGN_OR_RETURN(const uint64_t bits, sides.check(what));
  const Address& peer = planes.front().theirs->owner;
  const size_t all = sides.num_pages();
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
    BRAID_RETURN_IF_ERROR(check_spot(what, RegionName(*local), ours, bytes));
    BRAID_RETURN_IF_ERROR(check_spot(what, RegionName(*remote), theirs, bytes));
    if (bytes != 0) append_stretch(stretches, 0, {base + ours, theirs, bytes});
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
    BRAID_RETURN_IF_ERROR(
        check_spot("scatter", RegionName(*source), part.source_offset, part.bytes));
    BRAID_RETURN_IF_ERROR(
        check_spot("scatter", RegionName(*part.target.region), part.target.offset, part.bytes));
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
