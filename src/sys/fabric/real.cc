// libfabric for real. libfabric.so.1 is opened with dlopen: seven functions come by name, all
// others are calls through tables inside the objects, which the headers inline. So one binary runs
// with and without libfabric.
//
// Offered memory modes are LOCAL, VIRT_ADDR, ALLOCATED, PROV_KEY, ENDPOINT; what comes back is
// honoured, because providers without VIRT_ADDR want offsets from 0 and providers without PROV_KEY
// take the key from us.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "base/log.h"
#include "sys/fabric/api.h"

namespace braid::sys {
namespace {

// Both 1.17 (Debian 12) and 2.x answer to this version with the same structures.
constexpr uint32_t kApiVersion = FI_VERSION(1, 17);
static_assert(sizeof(fi_context2) <= sizeof(FabricOp::provider_space));

struct Symbols {
  decltype(&fi_getinfo) getinfo = nullptr;
  decltype(&fi_freeinfo) freeinfo = nullptr;
  decltype(&fi_dupinfo) dupinfo = nullptr;
  decltype(&fi_fabric) fabric = nullptr;
  decltype(&fi_strerror) strerror = nullptr;
  decltype(&fi_version) version = nullptr;
};

template <typename F>
bool find(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  return out != nullptr;
}

bool find_all(void* library, Symbols& s) {
  return find(library, "fi_getinfo", s.getinfo) && find(library, "fi_freeinfo", s.freeinfo) &&
         find(library, "fi_dupinfo", s.dupinfo) && find(library, "fi_fabric", s.fabric) &&
         find(library, "fi_strerror", s.strerror) && find(library, "fi_version", s.version);
}

// Provider shm installs handlers for SIGINT, SIGTERM, SIGSEGV and SIGBUS. A library must not take
// those from its process (Python's Ctrl-C is one of them), so what was there before comes back.
class KeptSignals {
 public:
  KeptSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~KeptSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGSEGV, SIGBUS};
  struct sigaction before_[4];
};

class Info {
 public:
  Info(const Symbols& symbols, fi_info* info) : symbols_(&symbols), info_(info) {}
  Info(Info&& other) noexcept
      : symbols_(other.symbols_), info_(std::exchange(other.info_, nullptr)) {}
  Info& operator=(Info&&) = delete;
  ~Info() {
    if (info_ != nullptr) symbols_->freeinfo(info_);
  }
  fi_info* get() const { return info_; }
  fi_info* operator->() const { return info_; }

 private:
  const Symbols* symbols_;
  fi_info* info_;
};

bool has_ip_addresses(const std::string& provider) {
  return provider != "shm" && provider != "efa";
}

enum class Reach { kHost, kDevices };

// fi_freeinfo frees the name, so it must come from malloc.
Info make_hints(const Symbols& symbols, const std::string& provider, const std::string& address,
                Reach reach) {
  fi_info* h = symbols.dupinfo(nullptr);
  h->caps = FI_MSG | FI_RMA;
  h->mode = FI_CONTEXT | FI_CONTEXT2;
  h->ep_attr->type = FI_EP_RDM;
  h->fabric_attr->prov_name = strdup(provider.c_str());
  h->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  h->domain_attr->threading = FI_THREAD_SAFE;
  h->domain_attr->cq_data_size = 4;
  if (reach == Reach::kDevices) {
    h->caps |= FI_HMEM;
    h->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  if (has_ip_addresses(provider))
    h->addr_format = address.find(':') == std::string::npos ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  return {symbols, h};
}

std::string numeric_address(const fi_info& info) {
  char text[INET6_ADDRSTRLEN] = "";
  if (info.src_addr == nullptr) return {};
  const auto* any = static_cast<const sockaddr*>(info.src_addr);
  if (info.addr_format == FI_SOCKADDR_IN ||
      (info.addr_format == FI_SOCKADDR && any->sa_family == AF_INET))
    inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info.src_addr)->sin_addr, text,
              sizeof text);
  else if (info.addr_format == FI_SOCKADDR_IN6)
    inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr, text,
              sizeof text);
  return text;
}

class RealRegion : public FabricRegion {
 public:
  RealRegion(fid_mr* mr, uint64_t remote_address) : mr_(mr), remote_address_(remote_address) {}
  uint64_t remote_address() const override { return remote_address_; }
  uint64_t key() const override { return fi_mr_key(mr_); }
  fid_mr* mr() const { return mr_; }

 private:
  fid_mr* mr_;
  uint64_t remote_address_;
};

class RealEndpoint : public FabricEndpoint {
 public:
  RealEndpoint(const Symbols& symbols, Info info) : symbols_(symbols), info_(std::move(info)) {}
  ~RealEndpoint() override { close_all(); }

  Status open(const EndpointRequest& request);
  const std::string& name() const override { return name_; }
  const std::string& description() const override { return description_; }
  Result<uint64_t> add_peer(std::string_view name) override;
  Result<const FabricRegion*> register_memory(std::byte* memory, size_t bytes, Access access,
                                              uint64_t requested_key) override;
  void unregister(const FabricRegion* region) override;
  Result<bool> write(const FabricWrite& write, FabricOp* op) override;
  size_t poll(std::span<FabricEvent> events) override;

 private:
  Status failed(const char* call, long rc) const {
    // An address that no interface has passes fi_getinfo and is refused when the endpoint binds to
    // it.
    const Code code = rc == -FI_EADDRNOTAVAIL ? Code::kUnavailable : Code::kDriver;
    return Status(code, fmt::format("libfabric {}: {} answered {} ({})", description_, call, rc,
                                    symbols_.strerror(static_cast<int>(-rc))));
  }
  Status open_queues(const EndpointRequest& request);
  Status open_endpoint();
  Status read_name();
  FabricEvent read_error();
  void close_regions();
  void close_all();

  const Symbols& symbols_;
  Info info_;
  std::string name_, description_;
  // On shm a confirmed write that is empty or refused never completes, and then every later write
  // is "busy" for ever (1.17); unconfirmed ones complete.
  bool can_confirm_ = true;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* av_ = nullptr;
  fid_cq* cq_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  std::vector<std::unique_ptr<RealRegion>> regions_;
};

// Returns from the caller with the library's words when a call fails.
#define BRAID_FI(call, name)                                      \
  do {                                                            \
    if (const long rc = (call); rc != 0) return failed(name, rc); \
  } while (false)

Status RealEndpoint::open(const EndpointRequest& request) {
  description_ = fmt::format("{} {}", info_->fabric_attr->prov_name, info_->domain_attr->name);
  can_confirm_ = std::string_view(info_->fabric_attr->prov_name) != "shm";
  if (info_->ep_attr->max_msg_size < request.max_write_bytes)
    return unsupported("libfabric {}: writes of {} bytes asked for, {} is the limit", description_,
                       request.max_write_bytes, info_->ep_attr->max_msg_size);
  BRAID_FI(symbols_.fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
  BRAID_FI(fi_domain(fabric_, info_.get(), &domain_, nullptr), "fi_domain");
  BRAID_RETURN_IF_ERROR(open_queues(request));
  BRAID_RETURN_IF_ERROR(open_endpoint());
  return read_name();
}

Status RealEndpoint::open_queues(const EndpointRequest& request) {
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  av.count = request.num_peers;
  BRAID_FI(fi_av_open(domain_, &av, &av_, nullptr), "fi_av_open");
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_DATA;
  cq.size = request.queue_depth;
  BRAID_FI(fi_cq_open(domain_, &cq, &cq_, nullptr), "fi_cq_open");
  return {};
}

Status RealEndpoint::open_endpoint() {
  BRAID_FI(fi_endpoint(domain_, info_.get(), &endpoint_, nullptr), "fi_endpoint");
  BRAID_FI(fi_ep_bind(endpoint_, &av_->fid, 0), "fi_ep_bind(av)");
  BRAID_FI(fi_ep_bind(endpoint_, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)");
  BRAID_FI(fi_enable(endpoint_), "fi_enable");
  return {};
}

Status RealEndpoint::read_name() {
  size_t bytes = 0;
  fi_getname(&endpoint_->fid, nullptr, &bytes);  // answers -FI_ETOOSMALL and the size
  name_.resize(std::max<size_t>(bytes, 256));
  bytes = name_.size();
  BRAID_FI(fi_getname(&endpoint_->fid, name_.data(), &bytes), "fi_getname");
  name_.resize(bytes);
  return {};
}

Result<uint64_t> RealEndpoint::add_peer(std::string_view name) {
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const std::string copy(name);  // shm reads a terminated string
  const int rc = fi_av_insert(av_, copy.c_str(), 1, &peer, 0, nullptr);
  if (rc != 1) return failed("fi_av_insert", rc < 0 ? rc : -FI_EINVAL);
  return static_cast<uint64_t>(peer);
}

Result<const FabricRegion*> RealEndpoint::register_memory(std::byte* memory, size_t bytes,
                                                          Access access, uint64_t requested_key) {
  const uint64_t rights = access == Access::kRemoteTarget ? FI_REMOTE_WRITE : FI_WRITE;
  fid_mr* mr = nullptr;
  BRAID_FI(fi_mr_reg(domain_, memory, bytes, rights, 0, requested_key, 0, &mr, nullptr),
           "fi_mr_reg");
  const int mode = info_->domain_attr->mr_mode;
  const uint64_t address = mode & FI_MR_VIRT_ADDR ? reinterpret_cast<uint64_t>(memory) : 0;
  regions_.push_back(std::make_unique<RealRegion>(mr, address));
  if (mode & FI_MR_ENDPOINT) {
    BRAID_FI(fi_mr_bind(mr, &endpoint_->fid, 0), "fi_mr_bind");
    BRAID_FI(fi_mr_enable(mr), "fi_mr_enable");
  }
  return regions_.back().get();
}

void RealEndpoint::unregister(const FabricRegion* region) {
  const auto it = std::find_if(regions_.begin(), regions_.end(),
                               [&](const auto& r) { return r.get() == region; });
  if (it == regions_.end()) return;
  fi_close(&(*it)->mr()->fid);
  regions_.erase(it);
}

Result<bool> RealEndpoint::write(const FabricWrite& w, FabricOp* op) {
  iovec local{const_cast<std::byte*>(w.source), w.bytes};
  void* desc = fi_mr_desc(static_cast<const RealRegion*>(w.source_region)->mr());
  fi_rma_iov remote{w.remote_address, w.bytes, w.remote_key};
  fi_msg_rma message{};
  message.msg_iov = &local;  // always a valid one: sockets and rxd crash without
  message.desc = &desc;
  message.iov_count = 1;
  message.addr = w.peer;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = op;
  message.data = w.immediate;
  const uint64_t flags = FI_REMOTE_CQ_DATA | FI_COMPLETION |
                         (w.wants_delivery && can_confirm_ ? FI_DELIVERY_COMPLETE : 0);
  const ssize_t rc = fi_writemsg(endpoint_, &message, flags);
  if (rc == 0) return true;
  if (rc == -FI_EAGAIN) return false;
  return failed("fi_writemsg", rc);
}

// `len` is never read and no flag but REMOTE_CQ_DATA is expected of an arrival: both differ between
// providers. WRITE is looked at because nothing forbids a provider to show REMOTE_CQ_DATA on our
// own writes too.
size_t RealEndpoint::poll(std::span<FabricEvent> events) {
  std::array<fi_cq_data_entry, 32> entries;
  const ssize_t n = fi_cq_read(cq_, entries.data(), std::min(entries.size(), events.size()));
  if (n == -FI_EAGAIN) return 0;
  if (n < 0) {
    events[0] = n == -FI_EAVAIL ? read_error()
                                : FabricEvent{FabricEvent::Kind::kFailed, nullptr, 0,
                                              failed("fi_cq_read", n).message()};
    return 1;
  }
  for (ssize_t i = 0; i < n; ++i) {
    const fi_cq_data_entry& e = entries[i];
    const bool arrived = (e.flags & FI_REMOTE_CQ_DATA) && !(e.flags & FI_WRITE);
    events[i].kind = arrived ? FabricEvent::Kind::kArrived : FabricEvent::Kind::kWritten;
    events[i].op = arrived ? nullptr : static_cast<FabricOp*>(e.op_context);
    events[i].immediate = static_cast<uint32_t>(e.data);
  }
  return static_cast<size_t>(n);
}

FabricEvent RealEndpoint::read_error() {
  fi_cq_err_entry error{};
  FabricEvent event{FabricEvent::Kind::kFailed, nullptr, 0, {}};
  if (fi_cq_readerr(cq_, &error, 0) < 0) {
    event.why = "an error entry that cannot be read";
    return event;
  }
  char text[256] = "";
  const char* words = fi_cq_strerror(cq_, error.prov_errno, error.err_data, text, sizeof text);
  event.op = static_cast<FabricOp*>(error.op_context);
  event.why = fmt::format("{} ({}), provider error {} ({})", symbols_.strerror(error.err),
                          error.err, error.prov_errno, words != nullptr ? words : "no text");
  return event;
}

void RealEndpoint::close_regions() {
  for (const auto& region : regions_) fi_close(&region->mr()->fid);
  regions_.clear();
}

// Children before parents. Regions bound to an endpoint must go first; else the endpoint goes
// first, so that nothing can land in a region that is being closed.
void RealEndpoint::close_all() {
  const KeptSignals keep;
  if (info_->domain_attr->mr_mode & FI_MR_ENDPOINT) close_regions();
  if (endpoint_ != nullptr) fi_close(&endpoint_->fid);
  close_regions();
  if (av_ != nullptr) fi_close(&av_->fid);
  if (cq_ != nullptr) fi_close(&cq_->fid);
  const int rc = domain_ != nullptr ? fi_close(&domain_->fid) : 0;
  if (rc != 0) log::warn("sys", "libfabric {}: closing the domain answered {}", description_, rc);
  if (fabric_ != nullptr) fi_close(&fabric_->fid);
}

class RealLibrary : public FabricLibrary {
 public:
  explicit RealLibrary(const Symbols& symbols) : symbols_(symbols) {}
  Result<std::unique_ptr<FabricEndpoint>> open(const EndpointRequest& request) override;
  Result<std::vector<FabricInterface>> interfaces(const std::string& provider) override;

 private:
  Result<Info> ask(const std::string& provider, const std::string& address,
                   Reach reach = Reach::kHost);
  const Symbols symbols_;
  std::mutex mutex_;  // providers set up global state in getinfo and fabric; ranks may be threads
};

Result<Info> RealLibrary::ask(const std::string& provider, const std::string& address,
                              Reach reach) {
  const Info hints = make_hints(symbols_, provider, address, reach);
  const bool named = has_ip_addresses(provider) && !address.empty();
  fi_info* found = nullptr;
  const int rc =
      symbols_.getinfo(kApiVersion, named ? address.c_str() : nullptr, named ? "0" : nullptr,
                       named ? FI_SOURCE : 0, hints.get(), &found);
  if (rc == 0 && found != nullptr) return Info(symbols_, found);
  return unavailable(
      "libfabric has no provider '{}' with reliable writes at address '{}': fi_getinfo answered {} "
      "({})",
      provider, address, rc, symbols_.strerror(-rc));
}

Result<std::unique_ptr<FabricEndpoint>> RealLibrary::open(const EndpointRequest& request) {
  const std::lock_guard lock(mutex_);
  const KeptSignals keep;
  BRAID_ASSIGN_OR_RETURN(Info info, ask(request.provider, request.address));
  if (info->domain_attr->cq_data_size < 4)
    return unsupported("libfabric {}: immediates of {} bytes, 4 are needed",
                       info->fabric_attr->prov_name, info->domain_attr->cq_data_size);
  auto endpoint = std::make_unique<RealEndpoint>(symbols_, std::move(info));
  BRAID_RETURN_IF_ERROR(endpoint->open(request));
  return std::unique_ptr<FabricEndpoint>(std::move(endpoint));
}

std::set<std::string> domains_of(const Result<Info>& first) {
  std::set<std::string> names;
  for (const fi_info* i = first.ok() ? first.value().get() : nullptr; i != nullptr; i = i->next)
    names.insert(i->domain_attr->name);
  return names;
}

Result<std::vector<FabricInterface>> RealLibrary::interfaces(const std::string& provider) {
  const std::lock_guard lock(mutex_);
  const KeptSignals keep;
  BRAID_ASSIGN_OR_RETURN(const Info first, ask(provider, {}));
  const std::set<std::string> reaching = domains_of(ask(provider, {}, Reach::kDevices));
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
  // Providers size their tables for this many peers; the default of 256 costs memory that no group
  // here can use.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): once, before the library that reads it is there
  setenv("FI_UNIVERSE_SIZE", "64", 0);
  const KeptSignals keep;
  void* library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  // NOLINTBEGIN(concurrency-mt-unsafe): glibc keeps dlerror()'s text per thread
  if (library == nullptr) return unavailable("libfabric.so.1 cannot be opened: {}", dlerror());
  Symbols symbols;
  if (!find_all(library, symbols))
    return unavailable("libfabric.so.1 lacks a function: {}", dlerror());
  // NOLINTEND(concurrency-mt-unsafe)
  const uint32_t version = symbols.version();
  if (FI_VERSION_LT(version, kApiVersion))
    return unavailable("libfabric.so.1 is {}.{}, 1.17 or newer is needed", FI_MAJOR(version),
                       FI_MINOR(version));
  return new RealLibrary(symbols);  // lives as long as the process: libfabric must never be closed
}

}  // namespace

Result<FabricLibrary*> real_fabric() {
  static const Result<FabricLibrary*> kLibrary = open_library();
  return kLibrary;
}

}  // namespace braid::sys
