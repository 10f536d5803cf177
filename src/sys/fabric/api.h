// The outside world behind RDMA libraries: interfaces that write into, and read from, each other's
// registered memory.
//
//   library   libfabric, libibverbs, or a fake     one per process
//   domain    one interface (NIC) opened           owns registrations: memory is registered once,
//                                                  whoever uses it
//   endpoint  an end of connections on a domain    owns queues: closing it ends what peers write
//                                                  through it, and nobody else notices
//
// real.cc opens libfabric.so.1 at run time, verbs/ libibverbs.so.1; fake.cc is a fabric inside the
// process that misbehaves on request, because real software providers deliver in order and never
// show an ordering bug.
//
// What may be relied on: a write that lands is whole before its immediate is seen at the target,
// and a write that was posted with wants_delivery on a domain whose limits say is_truthful has
// landed when it completes with success. What may NOT: order between writes, and any other success.
// On several providers a write that never landed completes with success, and a dead peer may give
// no event at all. EAGAIN ("busy") cannot be told from "dead". The target must poll() for writes to
// land. On shm of libfabric a peer that is killed while it holds a lock in shared memory stops who
// polls the other end, for ever.
//
// Threads: one thread at a time per endpoint, another one may have another endpoint of the same
// domain; a domain may be asked by several threads at once; opening is safe from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace braid::sys {

struct DomainRequest {
  std::string provider = "tcp";
  // The interface: a local address, or where the provider has none its name ("mlx5_0"). Empty lets
  // the provider choose.
  std::string address;
  uint64_t max_write_bytes = 0;  // the largest single write that must be possible
};

struct EndpointRequest {
  uint32_t num_peers = 1;
  uint32_t queue_depth = 1024;  // operations that may be outstanding before completions are polled
};

/// What a domain can do and what its word is worth.
struct FabricLimits {
  uint64_t max_write_bytes = 0;  // of one write or read; more is split by the caller
  // A write of at least a byte, with wants_delivery, that completed with success has landed whole at
  // its target. Of an empty one nothing is promised: shm cannot confirm it.
  bool is_truthful = false;
  // An immediate that arrives at an endpoint was sent by a peer that the endpoint has added: a
  // stranger cannot send one. Not so where an endpoint listens.
  bool has_trusted_immediates = false;
  bool can_read = false;
  // What comes in while an endpoint closes can end this process: who closes one should wait first, for
  // a while, for what its peers still owe it.
  bool fears_late_arrivals = false;
  // What comes is acknowledged late where nothing is sent the other way: the kernel's TCP.
  bool delays_acknowledgements = false;
};

/// What a region may be used for: by our own writes, reads and messages, or by writes and reads of
/// peers. Both is usual for pages that move on.
enum class Access : uint8_t { kLocalSource = 1, kRemoteTarget = 2, kBoth = 3 };

/// Memory to be registered: of the host, or of a GPU where the provider reaches it.
struct FabricMemory {
  std::byte* base = nullptr;  // a device address for a GPU
  size_t bytes = 0;
  Access access = Access::kBoth;
  int cuda_device = -1;  // the driver's ordinal; -1: host memory
  int dmabuf_fd = -1;    // of a GPU's memory, where the provider takes that
  uint64_t dmabuf_offset = 0;
};

/// Registered memory. The domain owns it; it dies with unregister() or with the domain.
class FabricRegion {
 public:
  virtual ~FabricRegion() = default;
  /// The address that a peer names to reach the region's first byte (an offset of 0 on some
  /// providers).
  virtual uint64_t remote_address() const = 0;
  virtual uint64_t key() const = 0;
};

/// The caller's record of one operation. Stays valid and in place until its completion or the
/// endpoint's end.
struct FabricOp {
  alignas(16) std::byte provider_space[64];  // struct fi_context2, for providers that ask for one
};

/// One write to, or read from, a peer's memory.
struct FabricTransfer {
  uint64_t peer = 0;  // from add_peer()
  const FabricRegion* local_region = nullptr;
  std::byte* local =
      nullptr;  // inside local_region; valid even when bytes is 0; writes only read it
  size_t bytes = 0;
  uint64_t remote_address = 0;
  uint64_t remote_key = 0;
  std::optional<uint32_t> immediate;  // writes only; none: the target hears nothing
  // Complete when it landed, where the provider can tell; else when it left.
  bool wants_delivery = true;
  // Another operation on this endpoint follows at once: the library may hold this one back until
  // one without has_more, or poll().
  bool has_more = false;
};

/// A message of two sides: it goes into the first memory that the peer has offered by receive().
struct FabricMessage {
  uint64_t peer = 0;  // send() only
  const FabricRegion* region = nullptr;
  std::byte* memory = nullptr;
  size_t bytes = 0;
};

struct FabricEvent {
  enum class Kind : uint8_t {
    kCompleted,  // our write, read or send
    kArrived,    // a peer's write with an immediate
    kReceived,   // a peer's message
    kFailed,
  };
  Kind kind = Kind::kCompleted;
  // The operation; null for kArrived, and for kFailed when the provider cannot say which.
  FabricOp* op = nullptr;
  uint32_t immediate = 0;  // kArrived
  uint32_t bytes = 0;      // kReceived
  int error = 0;           // kFailed: the library's number
  int provider_error = 0;  // kFailed: the provider's own; why() has the words
};

class FabricEndpoint {
 public:
  /// Closes the endpoint in bounded time: from then on no byte that a peer sent through it lands.
  /// Operations of ours that were on their way may be lost, or on shm still land at the peer, with
  /// what our memory holds by then: only a fence at the peer's end frees it.
  virtual ~FabricEndpoint() = default;

  /// Opaque bytes by which peers reach this endpoint.
  virtual const std::string& name() const = 0;
  virtual Result<uint64_t> add_peer(std::string_view name) = 0;
  /// true: posted; false: busy, poll() and try again; a Status: refused for good.
  virtual Result<bool> write(const FabricTransfer& transfer, FabricOp* op) = 0;
  /// Where limits().can_read.
  virtual Result<bool> read(const FabricTransfer& transfer, FabricOp* op) = 0;
  virtual Result<bool> send(const FabricMessage& message, FabricOp* op) = 0;
  virtual Result<bool> receive(const FabricMessage& message, FabricOp* op) = 0;
  /// Moves the provider forward and fetches what happened; how many of `events` were filled.
  virtual size_t poll(std::span<FabricEvent> events) = 0;
  /// The words for a kFailed event that the last poll() gave.
  virtual std::string why(const FabricEvent& failed) const = 0;
};

class FabricDomain {
 public:
  /// After all of its endpoints. Takes back all registrations.
  virtual ~FabricDomain() = default;

  /// "tcp;ofi_rxm eth0": for messages.
  virtual const std::string& description() const = 0;
  virtual const FabricLimits& limits() const = 0;
  virtual Result<std::unique_ptr<FabricEndpoint>> open_endpoint(const EndpointRequest& request) = 0;
  /// Asks for `requested_key`; a provider that chooses keys itself ignores it, so read
  /// FabricRegion::key(). unsupported for GPU memory that the provider does not reach.
  virtual Result<const FabricRegion*> register_memory(const FabricMemory& memory,
                                                      uint64_t requested_key) = 0;
  /// Takes the key back. A write that has begun to land may still touch the memory, so keep it
  /// mapped until the endpoints it may come through are closed.
  virtual void unregister(const FabricRegion* region) = 0;
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
  virtual Result<std::unique_ptr<FabricDomain>> open(const DomainRequest& request) = 0;
  /// Interfaces on which `provider` could open a domain that writes reliably.
  virtual Result<std::vector<FabricInterface>> interfaces(const std::string& provider) = 0;
};

/// The real libfabric, opened once and never closed; unavailable when it is not installed or too
/// old.
Result<FabricLibrary*> real_fabric();

/// A key that a stranger cannot guess: 63 random bits, never 0. (Bit 63 is left to providers.)
uint64_t random_key();

}  // namespace braid::sys
