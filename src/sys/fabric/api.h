// The outside world behind libfabric: endpoints on network interfaces that write into each other's
// registered memory.
//
// Only what braid needs is here: reliable datagram endpoints, registered regions, and writes that
// carry a 32-bit immediate (the width that every NIC has). real.cc opens libfabric.so.1 at run
// time; fake.cc is a fabric inside the process that misbehaves on request, because real software
// providers deliver in order and never show an ordering bug.
//
// What may be relied on: a write that lands is whole before its immediate is seen at the target.
// What may NOT: order between writes, and success. On several providers a write that never landed
// completes with success, and a dead peer may give no event at all. EAGAIN ("busy") cannot be told
// from "dead". The target must poll() for writes to land.
//
// Threads: one thread at a time per endpoint; opening is safe from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace braid::sys {

struct EndpointRequest {
  std::string provider = "tcp";
  std::string address;  // local address whose interface is used; empty lets the provider choose
  uint64_t max_write_bytes = 0;  // the largest single write that must be possible
  uint32_t num_peers = 1;
  uint32_t queue_depth = 1024;  // writes that may be outstanding before completions are polled
};

/// Registered memory. The endpoint owns it; it dies with unregister() or with the endpoint.
class FabricRegion {
 public:
  virtual ~FabricRegion() = default;
  /// The address that a peer names to reach the region's first byte (an offset of 0 on some
  /// providers).
  virtual uint64_t remote_address() const = 0;
  virtual uint64_t key() const = 0;
};

enum class Access { kLocalSource, kRemoteTarget };

/// The caller's record of one write. Stays valid and in place until its completion or the
/// endpoint's end.
struct FabricOp {
  alignas(16) std::byte provider_space[64];  // struct fi_context2, for providers that ask for one
};

struct FabricWrite {
  uint64_t peer = 0;  // from add_peer()
  const FabricRegion* source_region = nullptr;
  const std::byte* source = nullptr;  // inside source_region; valid even when bytes is 0
  size_t bytes = 0;
  uint64_t remote_address = 0;
  uint64_t remote_key = 0;
  uint32_t immediate = 0;
  // Complete when it landed, where the provider can tell; else when it left.
  bool wants_delivery = true;
};

struct FabricEvent {
  enum class Kind { kWritten, kArrived, kFailed };
  Kind kind = Kind::kWritten;
  // KWritten, kFailed; null when the provider cannot say which write failed.
  FabricOp* op = nullptr;
  uint32_t immediate = 0;  // kArrived
  std::string why;         // kFailed: the provider's own words
};

class FabricEndpoint {
 public:
  /// Closes endpoint, regions and interface in bounded time; writes that are still on their way may
  /// be lost.
  virtual ~FabricEndpoint() = default;

  /// Opaque bytes by which peers reach this endpoint.
  virtual const std::string& name() const = 0;
  /// "tcp;ofi_rxm eth0": for messages.
  virtual const std::string& description() const = 0;
  virtual Result<uint64_t> add_peer(std::string_view name) = 0;
  /// Asks for `requested_key`; a provider that chooses keys itself ignores it, so read
  /// FabricRegion::key().
  virtual Result<const FabricRegion*> register_memory(std::byte* memory, size_t bytes,
                                                      Access access, uint64_t requested_key) = 0;
  /// Takes the key back. A write that has begun to land may still touch the memory, so keep it
  /// mapped.
  virtual void unregister(const FabricRegion* region) = 0;
  /// true: posted; false: busy, poll() and try again; a Status: refused for good.
  virtual Result<bool> write(const FabricWrite& write, FabricOp* op) = 0;
  /// Moves the provider forward and fetches what happened; how many of `events` were filled.
  virtual size_t poll(std::span<FabricEvent> events) = 0;
};

struct FabricInterface {
  std::string provider;
  std::string name;      // the provider's domain, e.g. "eth0" or "mlx5_0"
  std::string address;   // numeric, empty when the provider has none
  double rate_gbps = 0;  // GB/s, 0 when unknown
  // The provider says that it can write memory of devices (FI_HMEM). Whether its build knows CUDA
  // only the registering of such memory would tell.
  bool reaches_gpus = false;
  friend bool operator==(const FabricInterface&, const FabricInterface&) = default;
};

class FabricLibrary {
 public:
  virtual ~FabricLibrary() = default;
  virtual Result<std::unique_ptr<FabricEndpoint>> open(const EndpointRequest& request) = 0;
  /// Interfaces on which `provider` could open a reliable-datagram endpoint that writes.
  virtual Result<std::vector<FabricInterface>> interfaces(const std::string& provider) = 0;
};

/// The real libfabric, opened once and never closed; unavailable when it is not installed or too
/// old.
Result<FabricLibrary*> real_fabric();

/// A key that a stranger cannot guess: 63 random bits, never 0. (Bit 63 is left to providers.)
uint64_t random_key();

/// Removes what an endpoint of provider "shm" left behind when its process was killed. Does nothing
/// while that process lives, or when `name` is no shm endpoint's.
void remove_dead_shm_file(std::string_view name);

}  // namespace braid::sys
