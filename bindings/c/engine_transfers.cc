// Transfers of the engine's C interface: what begins them, and their tickets.
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine_handle.h"

namespace engine = braid::engine;
using braid::Result;
using braid::Status;
using braid::c::adopt;
using braid::c::callback_of;
using braid::c::check_pointer;
using braid::c::check_process;
using braid::c::deadline_of;
using braid::c::guarded;
using braid::c::on_engine;
using braid::c::view_of;

namespace {

/// Which way pages go: out of our regions, or into them.
enum class Way { kWrite, kRead };

Result<engine::TransferOptions> transfer_of(const char* function,
                                            const braid_transfer_options* given) {
  braid_transfer_options all{};
  BRAID_RETURN_IF_ERROR(adopt(function, given, all));
  if (all.timeout_ns < 0)
    return braid::invalid_argument("{}: a timeout of {} ns", function, all.timeout_ns);
  if (all.notification == nullptr && all.notification_bytes != 0)
    return braid::invalid_argument("{}: notification is NULL, {} bytes", function,
                                   all.notification_bytes);
  engine::TransferOptions out;
  if (all.has_immediate != 0) out.immediate = all.immediate;
  if (all.notification_bytes != 0)
    out.notification.assign(static_cast<const char*>(all.notification), all.notification_bytes);
  out.timeout_ns = all.timeout_ns;
  out.callback = callback_of(all.callback, all.context);
  return out;
}

Result<std::vector<engine::PagePlane>> planes_of(const char* function,
                                                 const braid_page_plane* planes, size_t count) {
  static_assert(BRAID_ENGINE_MOST_PLANES == engine::kMostPlanes);
  if (count > BRAID_ENGINE_MOST_PLANES)
    return braid::invalid_argument("{}: {} planes, {} are the limit", function, count,
                                   BRAID_ENGINE_MOST_PLANES);
  std::vector<engine::PagePlane> out;
  for (size_t i = 0; i < count; ++i) {
    const braid_page_plane& plane = planes[i];
    if (plane.region == nullptr || plane.remote == nullptr)
      return braid::invalid_argument("{}: plane {}: its {} is NULL", function, i,
                                     plane.region == nullptr ? "region" : "remote");
    out.push_back(
        {plane.region->region, plane.remote->region, plane.region_offset, plane.remote_offset});
  }
  return out;
}

Result<engine::PageList> pages_of(const char* function, const braid_page_list* given) {
  braid_page_list all{};
  BRAID_RETURN_IF_ERROR(adopt(function, given, all));
  if (all.count != 0) {
    BRAID_RETURN_IF_ERROR(check_pointer(function, "source_ids", all.source_ids));
    BRAID_RETURN_IF_ERROR(check_pointer(function, "target_ids", all.target_ids));
  }
  engine::PageList out;
  out.page_bytes = all.page_bytes;
  out.source_ids = {all.source_ids, all.count};
  out.target_ids = {all.target_ids, all.count};
  out.source_stride = all.source_stride;
  out.target_stride = all.target_stride;
  out.source_offset = all.source_offset;
  out.target_offset = all.target_offset;
  return out;
}

/// Runs begin(options), which begins a transfer, and hands its ticket over.
template <typename Begin>
Status begin(const char* function, const braid_transfer_options* options, braid_ticket** ticket,
             Begin&& begin_it) {
  BRAID_ASSIGN_OR_RETURN(engine::TransferOptions told, transfer_of(function, options));
  auto out = std::make_unique<braid_ticket>();  // before it begins: afterwards nothing may fail
  BRAID_ASSIGN_OR_RETURN(out->ticket, begin_it(std::move(told)));
  if (ticket != nullptr) *ticket = out.release();
  return {};
}

Status begin_pages(engine::Engine& e, const char* function, Way way,
                   std::span<const engine::PagePlane> planes, const engine::PageList& list,
                   const braid_transfer_options* options, braid_ticket** ticket) {
  return begin(function, options, ticket, [&](engine::TransferOptions told) {
    return way == Way::kWrite ? e.write_pages(planes, list, std::move(told))
                              : e.read_pages(planes, list, std::move(told));
  });
}

/// Pages of one region of ours and one of a peer.
braid_code move_pages(braid_engine* self, const char* function, Way way, const braid_region* ours,
                      const braid_remote* theirs, const braid_page_list* pages,
                      const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::PageList list, pages_of(function, pages));
    const engine::PagePlane plane{ours->region, theirs->region};
    return begin_pages(e, function, way, {&plane, 1}, list, options, ticket);
  };
  const bool is_write = way == Way::kWrite;
  return on_engine(self, function,
                   {{is_write ? "source" : "target", ours},
                    {is_write ? "target" : "source", theirs},
                    {"pages", pages}},
                   run);
}

/// The same pages of several regions.
braid_code move_planes(braid_engine* self, const char* function, Way way,
                       const braid_page_plane* planes, size_t num_planes,
                       const braid_page_list* pages, const braid_transfer_options* options,
                       braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::PageList list, pages_of(function, pages));
    BRAID_ASSIGN_OR_RETURN(const std::vector<engine::PagePlane> all,
                           planes_of(function, planes, num_planes));
    return begin_pages(e, function, way, all, list, options, ticket);
  };
  return on_engine(self, function, {{"planes", planes}, {"pages", pages}}, run);
}

Status say(const char* function, const engine::Address& peer, std::string_view bytes,
           const braid_transfer_options* options, braid_ticket** ticket, engine::Engine& e,
           bool is_notification) {
  return begin(function, options, ticket, [&](engine::TransferOptions told) {
    return is_notification ? e.notify(peer, bytes, std::move(told))
                           : e.send(peer, bytes, std::move(told));
  });
}

}  // namespace

braid_code braid_engine_write(braid_engine* self, const braid_region* source,
                              uint64_t source_offset, const braid_remote* target,
                              uint64_t target_offset, uint64_t bytes,
                              const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) {
    return begin("braid_engine_write", options, ticket, [&](engine::TransferOptions told) {
      return e.write({source->region, source_offset}, {target->region, target_offset}, bytes,
                     std::move(told));
    });
  };
  return on_engine(self, __func__, {{"source", source}, {"target", target}}, run);
}

braid_code braid_engine_read(braid_engine* self, const braid_region* target, uint64_t target_offset,
                             const braid_remote* source, uint64_t source_offset, uint64_t bytes,
                             const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) {
    return begin("braid_engine_read", options, ticket, [&](engine::TransferOptions told) {
      return e.read({target->region, target_offset}, {source->region, source_offset}, bytes,
                    std::move(told));
    });
  };
  return on_engine(self, __func__, {{"target", target}, {"source", source}}, run);
}

braid_code braid_engine_write_pages(braid_engine* self, const braid_region* source,
                                    const braid_remote* target, const braid_page_list* pages,
                                    const braid_transfer_options* options, braid_ticket** ticket) {
  return move_pages(self, __func__, Way::kWrite, source, target, pages, options, ticket);
}

braid_code braid_engine_read_pages(braid_engine* self, const braid_region* target,
                                   const braid_remote* source, const braid_page_list* pages,
                                   const braid_transfer_options* options, braid_ticket** ticket) {
  return move_pages(self, __func__, Way::kRead, target, source, pages, options, ticket);
}

braid_code braid_engine_write_planes(braid_engine* self, const braid_page_plane* planes,
                                     size_t num_planes, const braid_page_list* pages,
                                     const braid_transfer_options* options, braid_ticket** ticket) {
  return move_planes(self, __func__, Way::kWrite, planes, num_planes, pages, options, ticket);
}

braid_code braid_engine_read_planes(braid_engine* self, const braid_page_plane* planes,
                                    size_t num_planes, const braid_page_list* pages,
                                    const braid_transfer_options* options, braid_ticket** ticket) {
  return move_planes(self, __func__, Way::kRead, planes, num_planes, pages, options, ticket);
}

braid_code braid_engine_signal(braid_engine* self, const braid_peer* peer, uint32_t immediate,
                               const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) {
    return begin("braid_engine_signal", options, ticket,
                 [&](engine::TransferOptions told) -> Result<engine::TicketPtr> {
                   BRAID_ASSIGN_OR_RETURN(const auto tickets,
                                          e.signal({&peer->address, 1}, immediate, told));
                   return tickets.front();
                 });
  };
  return on_engine(self, __func__, {{"peer", peer}}, run);
}

braid_code braid_engine_send(braid_engine* self, const braid_peer* peer, const void* message,
                             size_t bytes, const braid_transfer_options* options,
                             braid_ticket** ticket) {
  const void* needed = bytes == 0 ? peer : message;
  return on_engine(self, __func__, {{"peer", peer}, {"message", needed}}, [&](engine::Engine& e) {
    return say("braid_engine_send", peer->address, view_of(message, bytes), options, ticket, e,
               false);
  });
}

braid_code braid_engine_notify(braid_engine* self, const braid_peer* peer, const void* message,
                               size_t bytes, const braid_transfer_options* options,
                               braid_ticket** ticket) {
  const void* needed = bytes == 0 ? peer : message;
  return on_engine(self, __func__, {{"peer", peer}, {"message", needed}}, [&](engine::Engine& e) {
    return say("braid_engine_notify", peer->address, view_of(message, bytes), options, ticket, e,
               true);
  });
}

braid_code braid_ticket_wait(const braid_ticket* self, int64_t timeout_ns) {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointer("braid_ticket_wait", "ticket", self));
    BRAID_RETURN_IF_ERROR(check_process("braid_ticket_wait", "engine", self->process));
    return self->ticket->wait(deadline_of(timeout_ns));
  });
}

int braid_ticket_done(const braid_ticket* self) {
  return self != nullptr && self->ticket->is_done() ? 1 : 0;
}

braid_code braid_engine_cancel(braid_engine* self, const braid_ticket* ticket) {
  return on_engine(self, __func__, {{"ticket", ticket}}, [&](engine::Engine& e) -> Status {
    if (ticket->expected)
      e.forget(*ticket->expected, ticket->ticket.get());
    else
      e.cancel(ticket->ticket);
    return {};
  });
}

void braid_ticket_free(braid_ticket* ticket) { delete ticket; }
