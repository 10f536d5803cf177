#include "sys/verbs/domain.h"

#include <cerrno>

#include "sys/error_text.h"
#include "sys/verbs/endpoint.h"
#include "sys/verbs/registration.h"

namespace braid::sys::verbs {

Result<std::unique_ptr<FabricDomain>> Domain::open(const Library& library,
                                                   const DomainRequest& request) {
  BRAID_ASSIGN_OR_RETURN(ChosenPort chosen, choose_port(library, request.address));
  std::unique_ptr<Domain> domain(new Domain(library, std::move(chosen)));
  if (domain->limits_.max_write_bytes < request.max_write_bytes)
    return domain->named(unsupported("writes of {} bytes asked for, {} is the limit",
                                     request.max_write_bytes, domain->limits_.max_write_bytes));
  if (const Status status = domain->allocate(); !status.ok()) return domain->named(status);
  return std::unique_ptr<FabricDomain>(std::move(domain));
}

Domain::Domain(const Library& library, ChosenPort chosen)
    : library_(library),
      port_(std::move(chosen.port)),
      gid_(chosen.gid),
      description_("verbs " + port_.name) {
  limits_.max_write_bytes = port_.attributes.max_msg_sz;
  // A reliable connection completes a write when the target's NIC has acknowledged all of it; a
  // wrong key or address is an error of that write.
  limits_.is_truthful = true;
  limits_.has_trusted_immediates = true;  // a queue pair hears its peer alone
  limits_.can_read = port_.device.max_qp_rd_atom > 0 && port_.device.max_qp_init_rd_atom > 0;
}

Status Domain::allocate() {
  protection_ = {library_, library_.alloc_pd(port_.context.get())};
  if (!protection_) return driver_error("ibv_alloc_pd: {}", error_text(errno));
  events_ = std::make_unique<Events>(library_, port_.context.get(), port_.number);
  return {};
}

Result<std::unique_ptr<FabricEndpoint>> Domain::open_endpoint(const EndpointRequest& request) {
  auto endpoint = std::make_unique<Endpoint>(*this);
  if (const Status status = endpoint->open(request); !status.ok()) return named(status);
  return std::unique_ptr<FabricEndpoint>(std::move(endpoint));
}

Result<const FabricRegion*> Domain::register_memory(const FabricMemory& memory, uint64_t) {
  Result<MemoryRegion> registered = register_with(library_, protection_.get(), memory);
  if (!registered.ok()) return named(registered.status());
  auto region = std::make_unique<Region>(std::move(registered).value(), memory);
  const FabricRegion* answer = region.get();
  const std::lock_guard lock(mutex_);
  regions_.emplace(answer, std::move(region));
  return answer;
}

// Taking a registration back waits for the kernel: not under the lock.
void Domain::unregister(const FabricRegion* region) {
  std::unique_lock lock(mutex_);
  const auto node = regions_.extract(region);
  lock.unlock();
}

}  // namespace braid::sys::verbs
