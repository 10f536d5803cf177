// One port opened, with the memory that is registered on it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "sys/fabric/api.h"
#include "sys/verbs/events.h"
#include "sys/verbs/port.h"

namespace braid::sys::verbs {

/// Keys have 32 bits and are chosen by the NIC, often an index and a counter: they can be guessed.
/// It is not the key that keeps strangers out: a queue pair takes packets from the one queue pair
/// that it is connected to, with the packet number that is due. A guess helps only a peer that is
/// connected already, which has proved that it belongs to the job.
class Region final : public FabricRegion {
 public:
  Region(MemoryRegion registered, const FabricMemory& memory)
      : registered_(std::move(registered)), memory_(memory) {}
  uint64_t remote_address() const override { return reinterpret_cast<uint64_t>(memory_.base); }
  uint64_t key() const override { return registered_->rkey; }
  uint32_t local_key() const { return registered_->lkey; }
  bool is_host() const { return memory_.cuda_device < 0; }
  bool holds(const std::byte* first, size_t bytes) const {
    return first >= memory_.base && bytes <= memory_.bytes &&
           first - memory_.base <= static_cast<ptrdiff_t>(memory_.bytes - bytes);
  }

 private:
  MemoryRegion registered_;
  FabricMemory memory_;
};

class Domain final : public FabricDomain {
 public:
  static Result<std::unique_ptr<FabricDomain>> open(const Library& library,
                                                    const DomainRequest& request);

  const std::string& description() const override { return description_; }
  const FabricLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<FabricEndpoint>> open_endpoint(const EndpointRequest& request) override;
  Result<const FabricRegion*> register_memory(const FabricMemory& memory,
                                              uint64_t requested_key) override;
  void unregister(const FabricRegion* region) override;

  const Library& library() const { return library_; }
  const Port& port() const { return port_; }
  const GidEntry& gid() const { return gid_; }
  ibv_pd* protection() const { return protection_.get(); }
  Events& events() { return *events_; }
  /// The same failure with the domain's name in front.
  Status named(const Status& status) const { return status.with_context(description_); }

 private:
  Domain(const Library& library, ChosenPort chosen);
  Status allocate();

  const Library& library_;
  Port port_;  // before what lives on its context
  GidEntry gid_;
  std::string description_;
  FabricLimits limits_;
  ProtectionDomain protection_;
  std::unique_ptr<Events> events_;
  std::mutex mutex_;
  std::unordered_map<const FabricRegion*, std::unique_ptr<Region>> regions_;
};

}  // namespace braid::sys::verbs
