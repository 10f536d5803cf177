// The C interface of the transfer engine: integers and pointers in, a code out. Handles are the
// engine's shared pointers, so that one may be freed at any time.
#include "braid/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/nics.h"
#include "handle.h"

namespace engine = braid::engine;
using braid::Deadline;
using braid::Result;
using braid::Status;
using braid::c::check_process;
using braid::c::guarded;

struct braid_engine {
  std::unique_ptr<engine::Engine> engine;
  pid_t process = getpid();  // its threads are there, and in no fork of it
};
struct braid_region {
  std::shared_ptr<engine::Region> region;
};
struct braid_remote {
  engine::RemoteRegion region;
};
struct braid_peer {
  engine::Address address;
};
struct braid_ticket {
  engine::TicketPtr ticket;
  std::optional<uint32_t> expected;  // of an expectation: its immediate
  pid_t process = getpid();
};

namespace {

constexpr int64_t kForeverNs = int64_t{1} << 62;

Status check(const char* function, const char* name, const void* pointer) {
  if (pointer != nullptr) return {};
  return braid::invalid_argument("{}: {} is NULL", function, name);
}

/// Runs body(engine) when there is one, of this process, and all of the named pointers are there.
template <typename Body>
braid_code on_engine(braid_engine* self, const char* function,
                     std::initializer_list<std::pair<const char*, const void*>> needed,
                     Body&& body) noexcept {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check(function, "engine", self));
    for (const auto& [name, pointer] : needed)
      BRAID_RETURN_IF_ERROR(check(function, name, pointer));
    BRAID_RETURN_IF_ERROR(check_process(function, "engine", self->process));
    return body(*self->engine);
  });
}

/// A structure of a caller who was compiled with an older header, the rest as `all` has it.
template <typename Options>
Status adopt(const char* function, const Options* given, Options& all) {
  if (given == nullptr) return {};
  if (given->size < sizeof(size_t) || given->size > sizeof(Options))
    return braid::invalid_argument("{}: options of {} bytes, this library knows {}", function,
                                   given->size, sizeof(Options));
  std::memcpy(&all, given, given->size);
  all.size = sizeof(Options);
  return {};
}

braid_engine_options default_options() {
  const engine::EngineOptions known;
  braid_engine_options out{};
  out.size = sizeof out;
  out.device = -1;
  out.uses_local = 1;
  out.lease_ns = known.lease_ns;
  out.timeout_ns = known.timeout_ns;
  out.most_transfers = known.most_transfers;
  return out;
}

std::vector<std::string> parts_of(const char* list) {
  std::vector<std::string> out;
  const std::string text = list;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

Result<std::vector<engine::NicRequest>> nics_of(const char* list,
                                                const engine::EngineOptions& options) {
  const std::string text = list == nullptr ? "auto" : list;
  if (text == "none") return std::vector<engine::NicRequest>{};
  if (text == "auto") return engine::find_nics(options.hosts, options.uses_local);
  std::vector<engine::NicRequest> out;
  for (const std::string& part : parts_of(list)) {
    BRAID_ASSIGN_OR_RETURN(engine::NicRequest nic, engine::parse_nic(part));
    out.push_back(std::move(nic));
  }
  return out;
}

std::string environment(const char* name) {
  const char* value =
      secure_getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, at the start
  return value == nullptr ? "" : value;
}

Result<engine::EngineOptions> options_of(const braid_engine_options& given) {
  engine::EngineOptions out;
  if (given.name != nullptr) out.name = given.name;
  out.port = given.port;
  if (given.cores != nullptr) out.cores = given.cores;
  out.host_id = environment("BRAID_HOST_ID");
  out.token = given.token != nullptr ? given.token : environment("BRAID_JOB_TOKEN");
  out.device = given.device;
  out.uses_local = given.uses_local != 0;
  if (given.lease_ns <= 0 || given.timeout_ns <= 0)
    return braid::invalid_argument(
        "braid_engine_create: a lease of {} ns, a timeout of {} ns: "
        "asked for more than 0",
        given.lease_ns, given.timeout_ns);
  out.lease_ns = given.lease_ns;
  out.timeout_ns = given.timeout_ns;
  out.most_transfers = given.most_transfers;
  if (given.hosts != nullptr) {
    out.hosts = parts_of(given.hosts);
  } else {
    BRAID_ASSIGN_OR_RETURN(out.hosts, engine::find_hosts(!out.token.empty()));
  }
  BRAID_ASSIGN_OR_RETURN(out.nics, nics_of(given.nics, out));
  return out;
}

engine::Callback callback_of(braid_engine_callback callback, void* context) {
  if (callback == nullptr) return {};
  return [callback, context](const Status& ended) {
    callback(context, static_cast<braid_code>(ended.code()), ended.message().c_str());
  };
}

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
    BRAID_RETURN_IF_ERROR(check(function, "source_ids", all.source_ids));
    BRAID_RETURN_IF_ERROR(check(function, "target_ids", all.target_ids));
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

Status hand_out(const char* function, std::string_view bytes, void* out, size_t* size) {
  const size_t room = std::exchange(*size, bytes.size());
  if (out == nullptr) return {};
  if (room < bytes.size())
    return braid::invalid_argument("{}: {} bytes, found room for {}", function, bytes.size(), room);
  std::memcpy(out, bytes.data(), bytes.size());
  return {};
}

std::string_view view_of(const void* bytes, size_t size) {
  return {static_cast<const char*>(bytes), size};
}

Deadline deadline_of(int64_t timeout_ns) {
  return Deadline::after_ns(timeout_ns < 0 ? kForeverNs : std::min(timeout_ns, kForeverNs));
}

template <typename Take>
Status take(const char* function, void* out, size_t* bytes, Take&& take_one) {
  if (*bytes < BRAID_ENGINE_MOST_MESSAGE_BYTES)
    return braid::invalid_argument("{}: room for {} bytes, asked for {}", function, *bytes,
                                   int{BRAID_ENGINE_MOST_MESSAGE_BYTES});
  const std::optional<engine::Message> found = take_one();
  if (!found) return braid::timeout("{}: nothing has come", function);
  return hand_out(function, found->bytes, out, bytes);
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

braid_code braid_engine_defaults(braid_engine_options* options, size_t size) {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check("braid_engine_defaults", "options", options));
    if (size < sizeof(size_t) || size > sizeof *options)
      return braid::invalid_argument("braid_engine_defaults: {} bytes, this library knows {}", size,
                                     sizeof *options);
    const braid_engine_options all = default_options();
    std::memcpy(options, &all, size);
    options->size = size;
    return {};
  });
}

braid_code braid_engine_create(const braid_engine_options* options, braid_engine** out) {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check("braid_engine_create", "engine", out));
    *out = nullptr;
    braid_engine_options all = default_options();
    BRAID_RETURN_IF_ERROR(adopt("braid_engine_create", options, all));
    BRAID_ASSIGN_OR_RETURN(const engine::EngineOptions known, options_of(all));
    auto made = std::make_unique<braid_engine>();
    BRAID_ASSIGN_OR_RETURN(made->engine, engine::Engine::create(known));
    *out = made.release();
    return {};
  });
}

braid_code braid_engine_close(braid_engine* self) {
  return guarded([&]() -> Status {
    // In a fork there is no thread to wait for, and connections are the parent's to end.
    if (self != nullptr && self->process != getpid()) (void)self->engine.release();
    delete self;
    return {};
  });
}

braid_code braid_engine_address(braid_engine* self, void* out, size_t* bytes) {
  return on_engine(self, __func__, {{"bytes", bytes}}, [&](engine::Engine& e) {
    return hand_out("braid_engine_address", e.address(), out, bytes);
  });
}

braid_code braid_engine_import_peer(braid_engine* self, const void* address, size_t bytes,
                                    braid_peer** peer) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(engine::Address found, e.import_address(view_of(address, bytes)));
    *peer = new braid_peer{std::move(found)};
    return {};
  };
  return on_engine(self, __func__, {{"address", address}, {"peer", peer}}, run);
}

void braid_peer_free(braid_peer* peer) { delete peer; }

braid_code braid_engine_register(braid_engine* self, void* base, size_t bytes, int device,
                                 braid_region** region) {
  const auto run = [&](engine::Engine& e) -> Status {
    if (device < -1)
      return braid::invalid_argument("braid_engine_register: device {}: asked for a GPU, or -1",
                                     device);
    if (device >= 0 && device != e.options().device)
      return braid::unsupported("braid_engine_register: memory of GPU {}: this engine is of {}",
                                device, e.options().device);
    auto out = std::make_unique<braid_region>();
    BRAID_ASSIGN_OR_RETURN(
        out->region, device >= 0 ? e.register_gpu_memory(reinterpret_cast<uint64_t>(base), bytes)
                                 : e.register_memory(static_cast<std::byte*>(base), bytes));
    *region = out.release();
    return {};
  };
  return on_engine(self, __func__, {{"region", region}}, run);
}

braid_code braid_engine_unregister(braid_engine* self, braid_region* region, int64_t timeout_ns) {
  return on_engine(self, __func__, {{"region", region}}, [&](engine::Engine& e) {
    return e.unregister(*region->region, deadline_of(timeout_ns));
  });
}

void braid_region_free(braid_region* region) { delete region; }

braid_code braid_engine_descriptor(braid_engine* self, const braid_region* region, void* out,
                                   size_t* bytes) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const std::string text, e.descriptor(*region->region));
    return hand_out("braid_engine_descriptor", text, out, bytes);
  };
  return on_engine(self, __func__, {{"region", region}, {"bytes", bytes}}, run);
}

braid_code braid_engine_import(braid_engine* self, const void* descriptor, size_t bytes,
                               braid_remote** remote) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(engine::RemoteRegion found, e.import(view_of(descriptor, bytes)));
    *remote = new braid_remote{std::move(found)};
    return {};
  };
  return on_engine(self, __func__, {{"descriptor", descriptor}, {"remote", remote}}, run);
}

uint64_t braid_remote_bytes(const braid_remote* remote) {
  return remote == nullptr ? 0 : remote->region->bytes;
}

void braid_remote_free(braid_remote* remote) { delete remote; }

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
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::PageList list,
                           pages_of("braid_engine_write_pages", pages));
    return begin("braid_engine_write_pages", options, ticket, [&](engine::TransferOptions told) {
      return e.write_pages(source->region, target->region, list, std::move(told));
    });
  };
  return on_engine(self, __func__, {{"source", source}, {"target", target}, {"pages", pages}}, run);
}

braid_code braid_engine_read_pages(braid_engine* self, const braid_region* target,
                                   const braid_remote* source, const braid_page_list* pages,
                                   const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::PageList list, pages_of("braid_engine_read_pages", pages));
    return begin("braid_engine_read_pages", options, ticket, [&](engine::TransferOptions told) {
      return e.read_pages(target->region, source->region, list, std::move(told));
    });
  };
  return on_engine(self, __func__, {{"target", target}, {"source", source}, {"pages", pages}}, run);
}

braid_code braid_engine_write_planes(braid_engine* self, const braid_page_plane* planes,
                                     size_t num_planes, const braid_page_list* pages,
                                     const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::PageList list,
                           pages_of("braid_engine_write_planes", pages));
    BRAID_ASSIGN_OR_RETURN(const std::vector<engine::PagePlane> all,
                           planes_of("braid_engine_write_planes", planes, num_planes));
    return begin("braid_engine_write_planes", options, ticket, [&](engine::TransferOptions told) {
      return e.write_pages(all, list, std::move(told));
    });
  };
  return on_engine(self, __func__, {{"planes", planes}, {"pages", pages}}, run);
}

braid_code braid_engine_read_planes(braid_engine* self, const braid_page_plane* planes,
                                    size_t num_planes, const braid_page_list* pages,
                                    const braid_transfer_options* options, braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    BRAID_ASSIGN_OR_RETURN(const engine::PageList list,
                           pages_of("braid_engine_read_planes", pages));
    BRAID_ASSIGN_OR_RETURN(const std::vector<engine::PagePlane> all,
                           planes_of("braid_engine_read_planes", planes, num_planes));
    return begin("braid_engine_read_planes", options, ticket, [&](engine::TransferOptions told) {
      return e.read_pages(all, list, std::move(told));
    });
  };
  return on_engine(self, __func__, {{"planes", planes}, {"pages", pages}}, run);
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

braid_code braid_engine_disconnect(braid_engine* self, const braid_peer* peer) {
  return on_engine(self, __func__, {{"peer", peer}}, [&](engine::Engine& e) -> Status {
    e.disconnect(peer->address);
    return {};
  });
}

braid_code braid_engine_expect(braid_engine* self, uint32_t immediate, uint64_t count,
                               uint64_t* flag, braid_engine_callback callback, void* context,
                               braid_ticket** ticket) {
  const auto run = [&](engine::Engine& e) -> Status {
    static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
    auto out = std::make_unique<braid_ticket>();
    BRAID_ASSIGN_OR_RETURN(out->ticket, e.expect(immediate, count, callback_of(callback, context),
                                                 reinterpret_cast<std::atomic<uint64_t>*>(flag)));
    out->expected = immediate;
    if (ticket != nullptr) *ticket = out.release();
    return {};
  };
  return on_engine(self, __func__, {}, run);
}

braid_code braid_engine_forget(braid_engine* self, uint32_t immediate) {
  return on_engine(self, __func__, {}, [&](engine::Engine& e) -> Status {
    e.forget(immediate);
    return {};
  });
}

braid_code braid_engine_discard(braid_engine* self, uint32_t immediate) {
  return on_engine(self, __func__, {}, [&](engine::Engine& e) -> Status {
    e.discard(immediate);
    return {};
  });
}

braid_code braid_engine_count(braid_engine* self, uint32_t immediate, uint64_t* count) {
  return on_engine(self, __func__, {{"count", count}}, [&](engine::Engine& e) -> Status {
    *count = e.count(immediate);
    return {};
  });
}

braid_code braid_engine_recv(braid_engine* self, int64_t timeout_ns, void* out, size_t* bytes) {
  return on_engine(self, __func__, {{"out", out}, {"bytes", bytes}}, [&](engine::Engine& e) {
    return take("braid_engine_recv", out, bytes,
                [&] { return e.receive(deadline_of(timeout_ns)); });
  });
}

braid_code braid_engine_take_notification(braid_engine* self, int64_t timeout_ns, void* out,
                                          size_t* bytes) {
  return on_engine(self, __func__, {{"out", out}, {"bytes", bytes}}, [&](engine::Engine& e) {
    return take("braid_engine_take_notification", out, bytes,
                [&] { return e.take_notification(deadline_of(timeout_ns)); });
  });
}

braid_code braid_ticket_wait(const braid_ticket* self, int64_t timeout_ns) {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check("braid_ticket_wait", "ticket", self));
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

braid_code braid_engine_health(braid_engine* self, char* out, size_t* bytes) {
  return on_engine(self, __func__, {{"bytes", bytes}}, [&](engine::Engine& e) {
    std::string text;
    for (const std::string& line : e.health(Deadline::after_ns(1'000'000'000))) text += line + "\n";
    return hand_out("braid_engine_health", {text.c_str(), text.size() + 1}, out, bytes);
  });
}
