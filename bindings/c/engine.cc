// The C interface of the transfer engine: integers and pointers in, a code out. An engine's life,
// its peers and its regions; transfers and arrivals have files of their own.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/nics.h"
#include "engine_handle.h"

namespace engine = braid::engine;
using braid::Deadline;
using braid::Result;
using braid::Status;
using braid::c::adopt;
using braid::c::check_pointer;
using braid::c::deadline_of;
using braid::c::guarded;
using braid::c::hand_out;
using braid::c::on_engine;
using braid::c::view_of;

namespace braid::c {

Status hand_out(const char* function, std::string_view bytes, void* out, size_t* size) {
  const size_t room = std::exchange(*size, bytes.size());
  if (out == nullptr) return {};
  if (room < bytes.size())
    return braid::invalid_argument("{}: {} bytes, found room for {}", function, bytes.size(), room);
  std::memcpy(out, bytes.data(), bytes.size());
  return {};
}

engine::Callback callback_of(braid_engine_callback callback, void* context) {
  if (callback == nullptr) return {};
  return [callback, context](const Status& ended) {
    callback(context, static_cast<braid_code>(ended.code()), ended.message().c_str());
  };
}

Deadline deadline_of(int64_t timeout_ns) {
  constexpr int64_t kForeverNs = int64_t{1} << 62;
  return Deadline::after_ns(timeout_ns < 0 ? kForeverNs : std::min(timeout_ns, kForeverNs));
}

}  // namespace braid::c

namespace {

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

}  // namespace

braid_code braid_engine_defaults(braid_engine_options* options, size_t size) {
  return guarded([&]() -> Status {
    BRAID_RETURN_IF_ERROR(check_pointer("braid_engine_defaults", "options", options));
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
    BRAID_RETURN_IF_ERROR(check_pointer("braid_engine_create", "engine", out));
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

braid_code braid_engine_disconnect(braid_engine* self, const braid_peer* peer) {
  return on_engine(self, __func__, {{"peer", peer}}, [&](engine::Engine& e) -> Status {
    e.disconnect(peer->address);
    return {};
  });
}

braid_code braid_engine_health(braid_engine* self, char* out, size_t* bytes) {
  return on_engine(self, __func__, {{"bytes", bytes}}, [&](engine::Engine& e) {
    std::string text;
    for (const std::string& line : e.health(Deadline::after_ns(1'000'000'000))) text += line + "\n";
    return hand_out("braid_engine_health", {text.c_str(), text.size() + 1}, out, bytes);
  });
}
