// libfabric for real: libfabric.so.1 is opened with dlopen at run time. Its domains and endpoints
// are in real_domain.cc and real_endpoint.cc.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "sys/fabric/real.h"

namespace braid::sys {

namespace {

std::recursive_mutex& signals_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

template <typename F>
bool find(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  return out != nullptr;
}

bool find_all(void* library, LibfabricSymbols& s) {
  return find(library, "fi_getinfo", s.getinfo) && find(library, "fi_freeinfo", s.freeinfo) &&
         find(library, "fi_dupinfo", s.dupinfo) && find(library, "fi_fabric", s.fabric) &&
         find(library, "fi_strerror", s.strerror) && find(library, "fi_version", s.version);
}

// Provider ofi_rxm makes every endpoint ready for a thousand peers: 4096 buffers of 16 KiB for
// messages (68 MiB on tcp; 18 MiB with 128 of them), and a queue of 128 entries for each peer, which
// is more than some devices of verbs have (soft-RoCE: 32767 entries, so 64 peers fit and 256 do
// not). Our endpoints have few peers, and few messages: only on verbs is the number a limit on them
// (RealDomain::open_endpoint()).
//
// Providers of NICs keep registrations that were taken back, and serve new ones from those that
// are wider (the registration cache): a peer could go on writing into a region that is gone, and
// past the end of one. So they keep none.
//
// Provider efa would talk to ranks of its own host through provider shm, where a killed one can stop
// the others for ever.
//
// The library reads its settings once, at the first fi_getinfo; afterwards the environment is again
// as it was, because it belongs to the process and to those that it starts.
class OurSettings {
 public:
  // NOLINTBEGIN(concurrency-mt-unsafe): once, before the library that reads it is there
  OurSettings() {
    for (size_t i = 0; i < kSettings.size(); ++i) {
      is_ours_[i] = getenv(kSettings[i].first) == nullptr;
      setenv(kSettings[i].first, kSettings[i].second, 0);
    }
  }
  ~OurSettings() {
    for (size_t i = 0; i < kSettings.size(); ++i)
      if (is_ours_[i]) unsetenv(kSettings[i].first);
  }
  // NOLINTEND(concurrency-mt-unsafe)
  OurSettings(const OurSettings&) = delete;
  OurSettings& operator=(const OurSettings&) = delete;

 private:
  static constexpr std::array<std::pair<const char*, const char*>, 4> kSettings = {
      {{"FI_UNIVERSE_SIZE", "64"},
       {"FI_OFI_RXM_MSG_RX_SIZE", "128"},
       {"FI_MR_CACHE_MAX_COUNT", "0"},
       {"FI_EFA_ENABLE_SHM_TRANSFER", "0"}}};
  std::array<bool, kSettings.size()> is_ours_{};
};

class RealLibrary : public FabricLibrary {
 public:
  explicit RealLibrary(const LibfabricSymbols& symbols) : symbols_(symbols) {}
  Result<std::unique_ptr<FabricDomain>> open(const DomainRequest& request) override;
  Result<std::vector<FabricInterface>> interfaces(const std::string& provider) override;

 private:
  Result<LibfabricInfo> ask_for_widest_reach(const DomainRequest& request);

  const LibfabricSymbols symbols_;
  // Providers that are not asked for FI_HMEM: shm, which would copy twice then instead of reading the
  // peer's memory (CMA), and those that have none; to ask once more takes tcp 10 ms.
  std::set<std::string> host_only_{"shm"};
  std::mutex mutex_;  // providers set up global state in getinfo and fabric; ranks may be threads
};

Result<LibfabricInfo> RealLibrary::ask_for_widest_reach(const DomainRequest& request) {
  if (!host_only_.contains(request.provider)) {
    auto found = ask_libfabric(symbols_, request.provider, request.address, Reach::kDevices);
    if (found.ok()) return found;
  }
  auto found = ask_libfabric(symbols_, request.provider, request.address, Reach::kHost);
  if (found.ok()) host_only_.insert(request.provider);
  return found;
}

Result<std::unique_ptr<FabricDomain>> RealLibrary::open(const DomainRequest& request) {
  const std::lock_guard lock(mutex_);
  const KeptSignals keep;
  BRAID_ASSIGN_OR_RETURN(LibfabricInfo info, ask_for_widest_reach(request));
  if (info->domain_attr->cq_data_size < 4)
    return unsupported("libfabric {}: immediates of {} bytes, 4 are needed",
                       info->fabric_attr->prov_name, info->domain_attr->cq_data_size);
  auto domain = std::make_unique<RealDomain>(symbols_, std::move(info));
  if (domain->limits().max_write_bytes < request.max_write_bytes)
    return unsupported("libfabric {}: writes of {} bytes asked for, {} is the limit",
                       domain->description(), request.max_write_bytes,
                       domain->limits().max_write_bytes);
  BRAID_RETURN_IF_ERROR(domain->open());
  return std::unique_ptr<FabricDomain>(std::move(domain));
}

std::set<std::string> domains_of(const Result<LibfabricInfo>& first) {
  std::set<std::string> names;
  for (const fi_info* i = first.ok() ? first.value().get() : nullptr; i != nullptr; i = i->next)
    names.insert(i->domain_attr->name);
  return names;
}

Result<std::vector<FabricInterface>> RealLibrary::interfaces(const std::string& provider) {
  const std::lock_guard lock(mutex_);
  const KeptSignals keep;
  BRAID_ASSIGN_OR_RETURN(const LibfabricInfo first,
                         ask_libfabric(symbols_, provider, {}, Reach::kHost));
  const std::set<std::string> reaching =
      domains_of(ask_libfabric(symbols_, provider, {}, Reach::kDevices));
  std::vector<FabricInterface> out;
  for (const fi_info* i = first.get(); i != nullptr; i = i->next) {
    const bool has_speed = i->nic != nullptr && i->nic->link_attr != nullptr;
    const double bits = has_speed ? static_cast<double>(i->nic->link_attr->speed) : 0;
    FabricInterface found{i->fabric_attr->prov_name, i->domain_attr->name, numeric_address(*i),
                          bits / 8e9, reaching.contains(i->domain_attr->name)};
    if (std::find(out.begin(), out.end(), found) == out.end()) out.push_back(std::move(found));
  }
  return out;
}

Result<FabricLibrary*> open_library() {
  const OurSettings small;
  const KeptSignals keep;
  void* library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  // NOLINTBEGIN(concurrency-mt-unsafe): glibc keeps dlerror()'s text per thread
  if (library == nullptr) return unavailable("libfabric.so.1 cannot be opened: {}", dlerror());
  LibfabricSymbols symbols;
  if (!find_all(library, symbols))
    return unavailable("libfabric.so.1 lacks a function: {}", dlerror());
  // NOLINTEND(concurrency-mt-unsafe)
  const uint32_t version = symbols.version();
  if (FI_VERSION_LT(version, FI_VERSION(1, 17)))
    return unavailable("libfabric.so.1 is {}.{}, 1.17 or newer is needed", FI_MAJOR(version),
                       FI_MINOR(version));
  // The first question makes the library read its settings; the answer does not matter.
  (void)ask_libfabric(symbols, "tcp", {}, Reach::kHost);
  return new RealLibrary(symbols);  // lives as long as the process: libfabric must never be closed
}

}  // namespace

KeptSignals::KeptSignals() {
  signals_mutex().lock();
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
}

KeptSignals::~KeptSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  signals_mutex().unlock();
}

Result<FabricLibrary*> real_fabric() {
  static const Result<FabricLibrary*> kLibrary = open_library();
  return kLibrary;
}

}  // namespace braid::sys
