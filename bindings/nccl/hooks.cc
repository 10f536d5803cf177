#include "bindings/nccl/hooks.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/log.h"
#include "bindings/nccl/comm_config.h"
#include "bindings/nccl/shim.h"

#define BRAID_NCCL_API __attribute__((visibility("default")))

extern "C" {
extern const int braid_nccl_is_shim;
/// How many calls of each braid::nccl::Op were taken over and handed on; returns how many there
/// are.
BRAID_NCCL_API size_t braid_nccl_counts(uint64_t* taken, uint64_t* handed_on, size_t room);
/// Reasons::json() (reasons.h), cut to `room`; returns how many bytes it has. 0: there is no NCCL
/// yet.
BRAID_NCCL_API size_t braid_nccl_reasons(char* text, size_t room);
/// Whether communicators made from now on may be taken over. For measuring both in one process;
/// ranks that call it differently have communicators of NCCL's.
BRAID_NCCL_API void braid_nccl_take_over(int is_on);
}

namespace braid::nccl {

namespace {

Shim* the_shim = nullptr;  // never destroyed, as the real library
std::atomic<bool> signs_for_more{true};

Result<const braid_nccl_core*> open_core_beside_us() {
  Dl_info us{};
  if (dladdr(&braid_nccl_is_shim, &us) == 0) return internal_error("dladdr does not know us");
  char* const resolved = realpath(us.dli_fname, nullptr);
  if (resolved == nullptr) return unavailable("{}: the file is gone", us.dli_fname);
  std::string path = resolved;
  std::free(resolved);  // NOLINT(cppcoreguidelines-no-malloc): realpath's
  path = path.substr(0, path.rfind('/') + 1) + "libbraid-nccl-core.so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return unavailable("{}", dlerror());  // NOLINT(concurrency-mt-unsafe)
  void* const found = dlsym(library, "braid_nccl_core_table");
  if (found == nullptr) return unavailable("{}: there is no braid_nccl_core_table", path);
  const braid_nccl_core* core = reinterpret_cast<braid_nccl_core_function*>(found)();
  if (core->version != BRAID_NCCL_CORE_VERSION)
    return unavailable("{}: asked for version {}, found {}", path, BRAID_NCCL_CORE_VERSION,
                       core->version);
  return core;
}

const braid_nccl_core* opened_core() {
  static const braid_nccl_core* const kCore = [] {
    const auto opened = open_core_beside_us();
    if (opened.ok()) return opened.value();
    log::warn("nccl", "everything is left to NCCL: {}", opened.status().message());
    return static_cast<const braid_nccl_core*>(nullptr);
  }();
  return kCore;
}

/// C cannot unwind an exception: running out of memory is all that can throw here.
template <typename Body>
NcclResult guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return NcclResult::kSystemError;
  }
}

std::string key_of(const UniqueId* ids, int num_ids) {
  std::string key;
  for (int i = 0; i < num_ids; ++i) key.append(ids[i].bytes, sizeof ids[i].bytes);
  return key;
}

Real real;

}  // namespace

namespace hooks {

NcclResult GetUniqueId(UniqueId* id) {
  return guarded([&] { return the_shim->make_id(id); });
}

NcclResult CommInitAll(NcclComm* comms, int num_devices, const int* devices) {
  return guarded([&] {
    return the_shim->create_all(num_devices, comms,
                                [&] { return real.init_all(comms, num_devices, devices); });
  });
}

NcclResult CommInitRank(NcclComm* comm, int num_ranks, UniqueId id, int rank) {
  return guarded([&] {
    return the_shim->create(key_of(&id, 1), num_ranks, comm,
                            [&] { return real.init_rank(comm, num_ranks, id, rank); });
  });
}

NcclResult CommInitRankConfig(NcclComm* comm, int num_ranks, UniqueId id, int rank, void* config) {
  return guarded([&] {
    return the_shim->create(
        key_of(&id, 1), num_ranks, comm,
        [&] { return real.init_rank_config(comm, num_ranks, id, rank, config); },
        speed_of_config(config));
  });
}

NcclResult CommInitRankScalable(NcclComm* comm, int num_ranks, int rank, int num_ids, UniqueId* ids,
                                void* config) {
  return guarded([&] {
    const auto make = [&] {
      return real.init_rank_scalable(comm, num_ranks, rank, num_ids, ids, config);
    };
    if (ids == nullptr || num_ids < 1) return make();
    return the_shim->create(key_of(ids, num_ids), num_ranks, comm, make, speed_of_config(config));
  });
}

NcclResult CommSplit(NcclComm parent, int color, int key, NcclComm* child, void* config) {
  return guarded([&] { return the_shim->split(parent, color, key, child, config); });
}

NcclResult CommShrink(NcclComm parent, int* excluded, int num_excluded, NcclComm* child,
                      void* config, int flags) {
  return guarded(
      [&] { return the_shim->shrink(parent, excluded, num_excluded, child, config, flags); });
}

NcclResult CommFinalize(NcclComm comm) {
  return guarded([&] { return the_shim->finalize(comm); });
}
NcclResult CommDestroy(NcclComm comm) {
  return guarded([&] { return the_shim->destroy(comm); });
}
NcclResult CommAbort(NcclComm comm) {
  return guarded([&] { return the_shim->abort(comm); });
}
NcclResult CommRevoke(NcclComm comm, int flags) {
  return guarded([&] { return the_shim->revoke(comm, flags); });
}
NcclResult CommWindowRegister(NcclComm comm, void* memory, size_t bytes, void** window, int flags) {
  return guarded([&] { return the_shim->add_window(comm, memory, bytes, window, flags); });
}
NcclResult CommWindowDeregister(NcclComm comm, void* window) {
  return guarded([&] { return the_shim->drop_window(comm, window); });
}
NcclResult CommGetAsyncError(NcclComm comm, NcclResult* error) {
  return guarded([&] { return the_shim->get_async_error(comm, error); });
}
const char* GetLastError(NcclComm comm) { return the_shim->get_last_error(comm); }

NcclResult GroupStart() {
  return guarded([] { return the_shim->group_start(); });
}
NcclResult GroupEnd() {
  return guarded([] { return the_shim->group_end(); });
}
NcclResult GroupSimulateEnd(void* simulation) {
  return guarded([&] { return the_shim->group_simulate_end(simulation); });
}

NcclResult AllReduce(const void* send, void* recv, size_t count, int dtype, int redop,
                     NcclComm comm, CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kAllReduce, send, recv, count, dtype, redop, 0, comm, stream});
  });
}
NcclResult AllGather(const void* send, void* recv, size_t count, int dtype, NcclComm comm,
                     CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kAllGather, send, recv, count, dtype, 0, 0, comm, stream});
  });
}
NcclResult ReduceScatter(const void* send, void* recv, size_t count, int dtype, int redop,
                         NcclComm comm, CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kReduceScatter, send, recv, count, dtype, redop, 0, comm, stream});
  });
}
NcclResult Broadcast(const void* send, void* recv, size_t count, int dtype, int root, NcclComm comm,
                     CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kBroadcast, send, recv, count, dtype, 0, root, comm, stream});
  });
}
NcclResult Bcast(void* buf, size_t count, int dtype, int root, NcclComm comm, CudaStream stream) {
  return Broadcast(buf, buf, count, dtype, root, comm, stream);
}
NcclResult AlltoAll(const void* send, void* recv, size_t count, int dtype, NcclComm comm,
                    CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kAllToAll, send, recv, count, dtype, 0, 0, comm, stream});
  });
}
NcclResult Send(const void* send, size_t count, int dtype, int peer, NcclComm comm,
                CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kSend, send, nullptr, count, dtype, 0, peer, comm, stream});
  });
}
NcclResult Recv(void* recv, size_t count, int dtype, int peer, NcclComm comm, CudaStream stream) {
  return guarded([&] {
    return the_shim->submit({Op::kRecv, nullptr, recv, count, dtype, 0, peer, comm, stream});
  });
}

}  // namespace hooks

void start_hooks(const Library& library, const Settings& settings) {
  real = load_real(library);
  the_shim = new Shim(real, settings, opened_core);
  the_shim->sign_for_more(signs_for_more);
  pthread_atfork(nullptr, nullptr, [] { the_shim->disown(); });
}

void* hook_of(Name name, const Settings& settings) {
  // Without the promise sends and receives are never ours: they are jumps, too.
  if (!settings.is_grouped_exchange && (name == Name::kSend || name == Name::kRecv)) return nullptr;
  if (settings.nodes == Nodes::kOff && name == Name::kGetUniqueId) return nullptr;
  switch (name) {
#define HOOK(name) \
  case Name::k##name: return reinterpret_cast<void*>(hooks::name);
#include "bindings/nccl/hooks.inc"
#undef HOOK
    default: return nullptr;
  }
}

}  // namespace braid::nccl

size_t braid_nccl_counts(uint64_t* taken, uint64_t* handed_on, size_t room) {
  using braid::nccl::kNumOps;
  using braid::nccl::the_shim;
  for (size_t i = 0; i < kNumOps && i < room; ++i) {
    taken[i] = the_shim != nullptr ? the_shim->counts().taken[i].load() : 0;
    handed_on[i] = the_shim != nullptr ? the_shim->counts().handed_on[i].load() : 0;
  }
  return kNumOps;
}

void braid_nccl_take_over(int is_on) {
  braid::nccl::signs_for_more = is_on != 0;
  if (braid::nccl::the_shim != nullptr) braid::nccl::the_shim->sign_for_more(is_on != 0);
}

size_t braid_nccl_reasons(char* text, size_t room) {
  if (braid::nccl::the_shim == nullptr) return 0;
  const std::string json = braid::nccl::the_shim->reasons().json();
  json.copy(text, room);
  return json.size();
}
