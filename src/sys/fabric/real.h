// What the files of the real libfabric share: its functions, what a getinfo gave, and the objects
// they make. Only real*.cc include this: no header of libfabric goes further.
//
//   real.cc            the library: opened once, asked for interfaces and domains
//   real_info.cc       what is asked of a provider, and what its answer is worth
//   real_domain.cc     one interface: fid_fabric, fid_domain, registrations
//   real_endpoint.cc   one end: fid_av, fid_cq, fid_ep; operations and events
//   real_neighbours.cc endpoints of shm that must hold each other
//   shm_files.h        what those that were killed leave
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <array>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sys/fabric/api.h"
#include "sys/fabric/shm_files.h"

namespace braid::sys {

static_assert(sizeof(fi_context2) <= sizeof(FabricOp::provider_space));

/// libfabric's functions that come by name; all others are calls through tables inside its objects,
/// which its headers inline. So one binary runs with and without libfabric.
struct LibfabricSymbols {
  decltype(&fi_getinfo) getinfo = nullptr;
  decltype(&fi_freeinfo) freeinfo = nullptr;
  decltype(&fi_dupinfo) dupinfo = nullptr;
  decltype(&fi_fabric) fabric = nullptr;
  decltype(&fi_strerror) strerror = nullptr;
  decltype(&fi_version) version = nullptr;
};

/// Provider shm installs handlers for SIGINT, SIGTERM, SIGSEGV and SIGBUS. A library must not take
/// those from its process (Python's Ctrl-C is one of them), so what was there before comes back.
/// One at a time in the process: two that overlap would bring back the provider's handlers.
class KeptSignals {
 public:
  KeptSignals();
  ~KeptSignals();
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGSEGV, SIGBUS};
  struct sigaction before_[4];
};

/// A list of fi_info, freed with this object.
class LibfabricInfo {
 public:
  LibfabricInfo(const LibfabricSymbols& symbols, fi_info* info) : symbols_(&symbols), info_(info) {}
  LibfabricInfo(LibfabricInfo&& other) noexcept
      : symbols_(other.symbols_), info_(std::exchange(other.info_, nullptr)) {}
  LibfabricInfo& operator=(LibfabricInfo&&) = delete;
  ~LibfabricInfo();
  fi_info* get() const { return info_; }
  fi_info* operator->() const { return info_; }

 private:
  const LibfabricSymbols* symbols_;
  fi_info* info_;
};

enum class Reach { kHost, kDevices };

/// The version of the interface that is asked of `provider`: what this library has, within bounds.
uint32_t libfabric_version_for(const LibfabricSymbols& symbols, const std::string& provider);

/// Asks the library for domains of `provider` that write and read reliably.
Result<LibfabricInfo> ask_libfabric(const LibfabricSymbols& symbols, const std::string& provider,
                                    const std::string& address, Reach reach);
/// What is known of the provider that answered; the reasons are in real_info.cc.
FabricLimits libfabric_limits(const fi_info& info);
/// What operations on it must mind.
struct LibfabricQuirks {
  // A confirmed write of 0 bytes never completes, and stops those behind it.
  bool confirms_empty_writes = true;
  // A process that closes while a part of a write with an immediate is there crashes.
  bool splits_immediates = false;
  // See Neighbours.
  bool shares_mappings = false;
  // See shm_files.h.
  bool leaves_files = false;
  // A failure of an operation of ours names it. One that names none is of what came in, which may be
  // a stranger's: it says nothing of our peers.
  bool names_own_failures = false;
  // See HalfOpen.
  bool forgets_half_open = false;
  // See EndHandle.
  bool follows_unread_arrivals = false;
};
LibfabricQuirks libfabric_quirks(const fi_info& info);
std::string numeric_address(const fi_info& info);

class RealRegion final : public FabricRegion {
 public:
  RealRegion(fid_mr* mr, uint64_t remote_address) : mr_(mr), remote_address_(remote_address) {}
  ~RealRegion() override { fi_close(&mr_->fid); }
  RealRegion(const RealRegion&) = delete;
  RealRegion& operator=(const RealRegion&) = delete;
  uint64_t remote_address() const override { return remote_address_; }
  uint64_t key() const override { return fi_mr_key(mr_); }
  void* descriptor() const { return fi_mr_desc(mr_); }

 private:
  fid_mr* mr_;
  uint64_t remote_address_;
};

/// A fabric and a domain of libfabric; closed with the last who holds it.
struct DomainHandle {
  std::string description;
  bool leaves_files = false;  // see shm_files.h
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;

  DomainHandle() = default;
  DomainHandle(const DomainHandle&) = delete;
  DomainHandle& operator=(const DomainHandle&) = delete;
  ~DomainHandle();
  void remove_dead_files(int64_t patience_ns) const;
};

/// On tcp and net, a connection that was begun at an endpoint and of which nothing was heard yet points
/// to that endpoint for ever: when the endpoint is closed and somebody speaks, or goes, the next poll
/// of any endpoint of the domain follows the pointer (libfabric's own note of it stands in
/// xnet_pep_close; below rxm the socket is left open, and no more). A peer that was stopped while it connected does that, and any stranger can. So
/// what of an endpoint's sockets is open behind its end is closed too, which nobody looks at then.
class HalfOpen {
 public:
  /// The sockets at an endpoint's address, before its end.
  explicit HalfOpen(const std::string& name);
  /// Those that are open behind it.
  void close();

 private:
  struct Socket {
    int fd = -1;
    uint64_t file = 0;
  };
  std::vector<Socket> sockets_;
};

/// An endpoint of libfabric; closed with the last who holds it.
///
/// verbs;ofi_rxm gives the receive back that an immediate has used when the arrival is read; what nobody
/// has read is read by fi_close() itself, when the connection that the receive goes to is freed already
/// (rxm_close_conn() of 1.17.0 up to 2.6.0: fi_close(msg_ep), then rxm_flush_msg_cq(), and only then msg_ep =
/// NULL, which rxm_free_rx_buf() asks for; issue 11828 of libfabric, mended on its main in 2026 by #12674).
/// So we read all that is there just before. What comes in between that and the end of the queue pair
/// goes with the queue pair where a driver takes its completions out of the queue (those of NICs do).
/// Soft-RoCE leaves them, so there a peer that writes immediates while we close still is our end:
/// FabricLimits::fears_late_arrivals says so, and lanes wait for what their peers owe them before.
/// The same can happen inside libfabric while nothing of ours closes: it closes the connection of a peer
/// that has gone when we poll, and goes the same way. That we cannot mend.
struct EndHandle {
  std::shared_ptr<DomainHandle> domain;
  fid_av* av = nullptr;
  fid_cq* cq = nullptr;
  fid_ep* endpoint = nullptr;
  std::string listens_at;  // where connections may be half open when it ends; empty: nowhere
  bool follows_unread_arrivals = false;
  uint64_t num_peers = 0;  // that it may speak with

  EndHandle() = default;
  EndHandle(const EndHandle&) = delete;
  EndHandle& operator=(const EndHandle&) = delete;
  ~EndHandle();

 private:
  void read_what_is_left();
  void close();
};

/// On shm, endpoints of one process use each other's mappings, which go when their owner closes: the
/// other one, which still looks into them, would crash. So two that know each other hold each other,
/// and the memory goes with the later one. One that is closed is not polled any more, so nothing
/// lands through it meanwhile.
class Neighbours {
 public:
  /// For endpoints of this process by their names.
  static void enter(const std::string& name, const std::shared_ptr<Neighbours>& self,
                    const std::shared_ptr<EndHandle>& handle);
  static void leave(const std::string& name);
  /// `self` and the endpoint called `name`, if it is of this process, hold each other.
  static void hold_each_other(Neighbours& self, const std::shared_ptr<EndHandle>& handle,
                              const std::string& name);

 private:
  std::vector<std::shared_ptr<EndHandle>> held_;
};

class RealDomain final : public FabricDomain {
 public:
  RealDomain(const LibfabricSymbols& symbols, LibfabricInfo info);
  ~RealDomain() override;
  Status open();

  const std::string& description() const override { return description_; }
  const FabricLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<FabricEndpoint>> open_endpoint(const EndpointRequest& request) override;
  Result<const FabricRegion*> register_memory(const FabricMemory& memory,
                                              uint64_t requested_key) override;
  void unregister(const FabricRegion* region) override;

  /// A Status in the library's words.
  Status failed(const char* call, long rc) const;
  const LibfabricSymbols& symbols() const { return symbols_; }
  fi_info* info() const { return info_.get(); }
  const std::shared_ptr<DomainHandle>& handle() const { return handle_; }
  const LibfabricQuirks& quirks() const { return quirks_; }

 private:
  Status check_memory(const FabricMemory& memory) const;
  bool takes_dmabufs() const;
  Result<fid_mr*> make_registration(const FabricMemory& memory, uint64_t requested_key) const;

  const LibfabricSymbols& symbols_;
  const LibfabricInfo info_;
  const std::string description_;
  const FabricLimits limits_;
  const LibfabricQuirks quirks_;
  const std::shared_ptr<DomainHandle> handle_ = std::make_shared<DomainHandle>();
  std::mutex mutex_;  // guards regions_
  std::unordered_map<const FabricRegion*, std::unique_ptr<RealRegion>> regions_;
};

class RealEndpoint final : public FabricEndpoint {
 public:
  explicit RealEndpoint(const RealDomain& domain) : domain_(domain) {}
  ~RealEndpoint() override;
  Status open(const EndpointRequest& request);

  const std::string& name() const override { return name_; }
  Result<uint64_t> add_peer(std::string_view name) override;
  Result<bool> write(const FabricTransfer& transfer, FabricOp* op) override;
  Result<bool> read(const FabricTransfer& transfer, FabricOp* op) override;
  Result<bool> send(const FabricMessage& message, FabricOp* op) override;
  Result<bool> receive(const FabricMessage& message, FabricOp* op) override;
  size_t poll(std::span<FabricEvent> events) override;
  std::string why(const FabricEvent& failed) const override;

 private:
  enum class Direction : uint8_t { kWrite, kRead };
  struct Operation {
    Direction direction = Direction::kWrite;
    FabricTransfer transfer;
    FabricOp* op = nullptr;
    bool is_data_out = false;  // what is left is its immediate
  };
  Status open_queues(const EndpointRequest& request);
  Status open_end();
  Status make_end(const std::optional<ShmFilesTurn>& turn);
  Status read_name();
  Result<bool> submit(Operation operation);
  Result<bool> post(Operation& operation, bool has_more);
  Result<bool> post_transfer(const FabricTransfer& t, Direction direction, FabricOp* context,
                             uint64_t flags);
  uint64_t write_flags(const FabricTransfer& t) const;
  Result<bool> posted(ssize_t rc, const char* call) const;
  size_t hand_over_held(FabricEvent& refused);
  long read_queue(std::span<FabricEvent> events);
  size_t read_error(FabricEvent& event);
  void note_stranger(const FabricEvent& failed);

  const RealDomain& domain_;
  std::string name_;
  std::shared_ptr<EndHandle> handle_ = std::make_shared<EndHandle>();
  std::shared_ptr<Neighbours> neighbours_;  // on shm
  std::optional<Operation> held_;           // see submit()
  bool has_lost_data_ = false;              // of held_
  uint64_t num_strangers_ = 0;              // failures that were none of ours
  FabricOp data_;                           // stands for all data whose immediate follows
};

// Returns from the caller with the library's words when a call fails.
#define BRAID_FI(call, name)                                      \
  do {                                                            \
    if (const long rc = (call); rc != 0) return failed(name, rc); \
  } while (false)

}  // namespace braid::sys
