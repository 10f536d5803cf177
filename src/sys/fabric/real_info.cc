// What is asked of a libfabric provider, and what is known of the one that answers.
//
// Memory modes that are offered: LOCAL, ALLOCATED, PROV_KEY and, but to shm, VIRT_ADDR. What comes
// back is honoured, because providers without VIRT_ADDR want offsets from 0 and providers without
// PROV_KEY take the key from us. ENDPOINT is not offered: a region belongs to a domain here, and
// would have to be bound to one of its endpoints.
//
// Why shm gets no VIRT_ADDR: with it, its writers put bytes into the peer's memory themselves
// (process_vm_writev), without asking for a key and whether or not the peer's endpoint is still
// open. Without it the target checks the key and copies, when it polls.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "sys/fabric/real.h"

namespace braid::sys {

namespace {

// 1.17 is what Debian 12 has; later ones answer to it with the same structures.
constexpr uint32_t kLowestVersion = FI_VERSION(1, 17);
// efa writes with the device alone, and reaches GPUs, only for who asks for 1.18 or later, and takes
// dma-bufs from 1.20 on. Up to there the structures are those of the headers used here, but for the
// ends of an error's entry (real_endpoint.cc) and of a registration (real_domain.cc).
constexpr uint32_t kHighestVersion = FI_VERSION(1, 20);

bool has_ip_addresses(const std::string& provider) {
  return provider != "shm" && !provider.starts_with("efa");
}

// fi_freeinfo frees the name, so it must come from malloc.
LibfabricInfo make_hints(const LibfabricSymbols& symbols, const std::string& provider,
                         const std::string& address, Reach reach) {
  fi_info* h = symbols.dupinfo(nullptr);
  h->caps = FI_MSG | FI_RMA;
  h->mode = FI_CONTEXT | FI_CONTEXT2;
  h->ep_attr->type = FI_EP_RDM;
  h->fabric_attr->prov_name = strdup(provider.c_str());
  h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  if (provider != "shm") h->domain_attr->mr_mode |= FI_MR_VIRT_ADDR;
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

}  // namespace

uint32_t libfabric_version_for(const LibfabricSymbols& symbols, const std::string& provider) {
  return provider.starts_with("efa") ? std::min(symbols.version(), kHighestVersion)
                                     : kLowestVersion;
}

LibfabricInfo::~LibfabricInfo() {
  if (info_ != nullptr) symbols_->freeinfo(info_);
}

Result<LibfabricInfo> ask_libfabric(const LibfabricSymbols& symbols, const std::string& provider,
                                    const std::string& address, Reach reach) {
  LibfabricInfo hints = make_hints(symbols, provider, address, reach);
  const bool is_ip = has_ip_addresses(provider) && !address.empty();
  // Such a provider names its interfaces by domain ("rdmap0s6-rdm").
  if (!has_ip_addresses(provider) && provider != "shm" && !address.empty())
    hints->domain_attr->name = strdup(address.c_str());
  fi_info* found = nullptr;
  const int rc =
      symbols.getinfo(libfabric_version_for(symbols, provider), is_ip ? address.c_str() : nullptr,
                      is_ip ? "0" : nullptr, is_ip ? FI_SOURCE : 0, hints.get(), &found);
  if (rc == 0 && found != nullptr) return LibfabricInfo(symbols, found);
  return unavailable(
      "libfabric has no provider '{}' with reliable writes at address '{}': fi_getinfo answered {} "
      "({})",
      provider, address, rc, symbols.strerror(-rc));
}

// is_truthful, by FI_DELIVERY_COMPLETE. tcp and net: a confirmed write that is refused, or whose
// target died, fails or says nothing (measured). shm: the target answers when it has copied; what
// it refuses is never answered (measured). verbs: the acknowledgement of a reliable connection.
// efa: it acknowledges what its device has placed, or what its software has (by its documentation).
// sockets and udp: not measured, so not believed.
//
// has_trusted_immediates: tcp, net, sockets, udp and verbs;ofi_rxm accept whoever connects. shm takes
// commands from each process of the same user. efa takes what carries the endpoint's queue key, 32
// bits that somebody on the same network could try out. So none: trust needs queue pairs of our own.
//
// can_read: not on shm. From 1.19 or so its peers write what we read into our memory themselves
// (process_vm_writev), when they poll, even after our endpoint was closed; 1.17 has one read on its
// way at a time, through small buffers.
FabricLimits libfabric_limits(const fi_info& info) {
  const std::string_view provider = info.fabric_attr->prov_name;
  const bool is_shm = provider == "shm";
  FabricLimits limits;
  limits.max_write_bytes = info.ep_attr->max_msg_size;
  limits.is_truthful = is_shm || provider == "tcp;ofi_rxm" || provider == "tcp" ||
                       provider == "net" || provider == "verbs;ofi_rxm" || provider == "efa";
  limits.has_trusted_immediates = false;
  limits.fears_late_arrivals = provider == "verbs;ofi_rxm";  // see EndHandle
  limits.delays_acknowledgements =
      provider == "net" || provider == "tcp" || provider == "tcp;ofi_rxm";
  limits.can_read = !is_shm && (info.caps & FI_READ) != 0 && (info.caps & FI_REMOTE_READ) != 0;
  return limits;
}

// tcp;ofi_rxm of 1.17: when the target closes while a part of a write with an immediate is there,
// tcp tells of an error without an operation, and ofi_rxm reads through that null pointer. Plain
// writes are not told of, and one of 0 bytes is never there in part. So the data goes first and the
// immediate follows in a write of its own, on the same connection, which keeps their order.
//
// Who connects to such an endpoint and sends what it cannot be makes the queue tell of failures
// without an operation (measured on tcp;ofi_rxm): ours always have theirs.
LibfabricQuirks libfabric_quirks(const fi_info& info) {
  const std::string_view provider = info.fabric_attr->prov_name;
  LibfabricQuirks quirks;
  quirks.confirms_empty_writes = provider != "shm";
  quirks.shares_mappings = provider == "shm";
  quirks.leaves_files = provider == "shm";
  quirks.forgets_half_open = provider == "net" || provider == "tcp" || provider == "tcp;ofi_rxm";
  quirks.follows_unread_arrivals = provider == "verbs;ofi_rxm";
  quirks.splits_immediates = provider == "tcp;ofi_rxm";
  quirks.names_own_failures = provider == "tcp;ofi_rxm" || provider == "tcp" || provider == "net" ||
                              provider == "verbs;ofi_rxm";
  return quirks;
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

}  // namespace braid::sys
