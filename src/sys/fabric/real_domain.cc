// One interface of libfabric: a fid_fabric, a fid_domain, and the registrations that all of its
// endpoints share.
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "sys/fabric/real.h"
#include "sys/fabric/shm_files.h"

namespace braid::sys {

namespace {

uint64_t rights_of(Access access) {
  constexpr uint64_t kOwn = FI_SEND | FI_RECV | FI_WRITE | FI_READ;
  constexpr uint64_t kPeers = FI_REMOTE_WRITE | FI_REMOTE_READ;
  const auto bits = static_cast<uint8_t>(access);
  const bool is_source = (bits & static_cast<uint8_t>(Access::kLocalSource)) != 0;
  const bool is_target = (bits & static_cast<uint8_t>(Access::kRemoteTarget)) != 0;
  return (is_source ? kOwn : 0) | (is_target ? kPeers : 0);
}

// Of libfabric 1.20, whose headers are not needed to compile this.
constexpr uint64_t kMrDmabuf = uint64_t{1} << 40;  // FI_MR_DMABUF
struct MrDmabuf {                                  // fi_mr_dmabuf, which mr_iov points to instead
  int fd = -1;
  uint64_t offset = 0;
  size_t bytes = 0;
  void* base = nullptr;
};

bool is_verbs_over_rxm(const fi_info& info) {
  return std::string_view(info.fabric_attr->prov_name) == "verbs;ofi_rxm";
}

// As the library read it at its start (SmallQueues in real.cc).
uint32_t universe_size() {
  const char* text = getenv("FI_UNIVERSE_SIZE");  // NOLINT(concurrency-mt-unsafe)
  return text != nullptr ? static_cast<uint32_t>(std::strtoul(text, nullptr, 10)) : 64;
}

}  // namespace

RealDomain::RealDomain(const LibfabricSymbols& symbols, LibfabricInfo info)
    : symbols_(symbols),
      info_(std::move(info)),
      description_(fmt::format("{} {}", info_->fabric_attr->prov_name, info_->domain_attr->name)),
      limits_(libfabric_limits(*info_.get())),
      quirks_(libfabric_quirks(*info_.get())) {}

Status RealDomain::failed(const char* call, long rc) const {
  // An address that no interface has passes fi_getinfo and is refused when an endpoint binds to it.
  const Code code = rc == -FI_EADDRNOTAVAIL ? Code::kUnavailable : Code::kDriver;
  return Status(code, fmt::format("libfabric {}: {} answered {} ({})", description_, call, rc,
                                  symbols_.strerror(static_cast<int>(-rc))));
}

Status RealDomain::open() {
  handle_->description = description_;
  handle_->leaves_files = quirks_.leaves_files;
  handle_->remove_dead_files(0);  // of jobs before, of which nobody was left
  BRAID_FI(symbols_.fabric(info_->fabric_attr, &handle_->fabric, nullptr), "fi_fabric");
  BRAID_FI(fi_domain(handle_->fabric, info_.get(), &handle_->domain, nullptr), "fi_domain");
  return {};
}

Result<std::unique_ptr<FabricEndpoint>> RealDomain::open_endpoint(const EndpointRequest& request) {
  // There the queue under all connections has a fixed size, and one that overflows is lost.
  if (is_verbs_over_rxm(*info_.get()) && request.num_peers > universe_size())
    return unsupported(
        "libfabric {}: {} peers on one endpoint, {} is the limit; set FI_UNIVERSE_SIZE for more, "
        "where the device has queues that long",
        description_, request.num_peers, universe_size());
  auto endpoint = std::make_unique<RealEndpoint>(*this);
  const KeptSignals keep;
  BRAID_RETURN_IF_ERROR(endpoint->open(request));
  return std::unique_ptr<FabricEndpoint>(std::move(endpoint));
}

bool RealDomain::takes_dmabufs() const {
  return FI_VERSION_GE(libfabric_version_for(symbols_, info_->fabric_attr->prov_name),
                       FI_VERSION(1, 20));
}

Status RealDomain::check_memory(const FabricMemory& memory) const {
  if (memory.base == nullptr || memory.bytes == 0)
    return invalid_argument("libfabric {}: memory of {} bytes at {:#x} cannot be registered",
                            description_, memory.bytes, reinterpret_cast<uint64_t>(memory.base));
  if (memory.dmabuf_fd >= 0 && !takes_dmabufs())
    return unsupported("libfabric {}: memory by dma-buf descriptor is taken by efa of 1.20 alone",
                       description_);
  if (memory.cuda_device >= 0 && (info_->caps & FI_HMEM) == 0)
    return unsupported("libfabric {}: it does not reach memory of GPUs (no FI_HMEM); GPU {} asked",
                       description_, memory.cuda_device);
  return {};
}

Result<fid_mr*> RealDomain::make_registration(const FabricMemory& memory,
                                              uint64_t requested_key) const {
  const iovec span{memory.base, memory.bytes};
  const MrDmabuf dmabuf{memory.dmabuf_fd, memory.dmabuf_offset, memory.bytes, memory.base};
  const bool is_dmabuf = memory.dmabuf_fd >= 0, is_gpu = memory.cuda_device >= 0;
  struct {
    fi_mr_attr now;
    std::byte of_later_versions[64];  // 1.20 appends a pointer for other devices
  } padded{};
  fi_mr_attr& attributes = padded.now;
  attributes.mr_iov = is_dmabuf ? reinterpret_cast<const iovec*>(&dmabuf) : &span;
  attributes.iov_count = 1;
  attributes.access = rights_of(memory.access);
  attributes.requested_key = requested_key;
  attributes.iface = is_gpu ? FI_HMEM_CUDA : FI_HMEM_SYSTEM;
  if (is_gpu) attributes.device.cuda = memory.cuda_device;
  fid_mr* mr = nullptr;
  const int rc = fi_mr_regattr(handle_->domain, &attributes, is_dmabuf ? kMrDmabuf : 0, &mr);
  if (rc == 0) return mr;
  const std::string whose = is_gpu ? fmt::format("GPU {}", memory.cuda_device) : "the host";
  return failed("fi_mr_regattr", rc)
      .with_context(fmt::format("registering {} bytes of {}", memory.bytes, whose));
}

Result<const FabricRegion*> RealDomain::register_memory(const FabricMemory& memory,
                                                        uint64_t requested_key) {
  BRAID_RETURN_IF_ERROR(check_memory(memory));
  BRAID_ASSIGN_OR_RETURN(fid_mr* const mr, make_registration(memory, requested_key));
  const bool has_addresses = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  auto region =
      std::make_unique<RealRegion>(mr, has_addresses ? reinterpret_cast<uint64_t>(memory.base) : 0);
  const FabricRegion* out = region.get();
  const std::lock_guard lock(mutex_);
  regions_.emplace(out, std::move(region));
  return out;
}

void RealDomain::unregister(const FabricRegion* region) {
  const std::lock_guard lock(mutex_);
  regions_.erase(region);
}

// The domain itself goes with its handle.
RealDomain::~RealDomain() { regions_.clear(); }

DomainHandle::~DomainHandle() {
  {
    const KeptSignals keep;
    const int rc = domain != nullptr ? fi_close(&domain->fid) : 0;
    if (rc != 0) log::warn("sys", "libfabric {}: closing the domain answered {}", description, rc);
    if (fabric != nullptr) fi_close(&fabric->fid);
  }
  remove_dead_files(
      100'000'000);  // of peers, too, that were killed before they had met an endpoint
}

void DomainHandle::remove_dead_files(int64_t patience_ns) const {
  if (leaves_files) remove_dead_shm_files(patience_ns);
}

}  // namespace braid::sys
