// The transfer engine: one-sided writes and reads between processes, from any thread to any peer,
// complete when the target has counted them. docs/engine.md is the manual, docs/engine_protocol.md
// tells the protocol.
//
//   auto engine = Engine::create(options);                       // one per GPU, or per process
//   auto region = (*engine)->register_memory(pages, bytes);      // once
//   ship(*(*engine)->descriptor(**region));                      // opaque bytes, by any means
//   auto remote = (*engine)->import(bytes_of_a_peer);
//   auto ticket = (*engine)->write({region, 0}, {remote, 4096}, 65536, {.immediate = 7});
//   ... and there: auto arrived = engine->expect(7, 1); (*arrived)->wait(deadline);
//
// A transfer under an immediate makes the target's count of it grow: a write by 1, pages by one for
// each page, whatever rails they took and however they were cut. So both sides know the number in
// advance.
//
// The source's memory must not change before its ticket has ended. When a ticket has ended, well or
// not, no byte of it is read or will land any more.
//
// Errors: invalid_argument (a range, a descriptor, a region that is gone), peer_lost, timeout (with
// what was outstanding), exhausted (too many under way, a peer's full mailbox), cancelled, driver.
// Threads: any, at once.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ground.h"
#include "engine/transfer.h"
#include "engine/watch.h"

namespace braid::engine {

class Worker;

using RemoteRegion = std::shared_ptr<const RegionDescriptor>;

struct LocalSpot {
  std::shared_ptr<Region> region;
  uint64_t offset = 0;
};
struct RemoteSpot {
  RemoteRegion region;
  uint64_t offset = 0;
};

/// What the target is told of a transfer, and by when the transfer must have ended.
struct TransferOptions {
  std::optional<uint32_t> immediate;  // writes only
  std::string notification;           // at most 64 KiB; delivered behind all bytes; empty: none
  int64_t timeout_ns = 0;             // 0: the engine's
  Callback callback;
};

/// Pages of one size, by number: page i of the list goes from source_offset + source_ids[i] *
/// source_stride to target_offset + target_ids[i] * target_stride.
struct PageList {
  uint64_t page_bytes = 0;
  std::span<const uint64_t> source_ids, target_ids;  // equally many
  uint64_t source_stride = 0, target_stride = 0;     // 0: page_bytes
  uint64_t source_offset = 0, target_offset = 0;
};

/// A place at which a list of pages holds: a layer of a KV cache here, and there. Its offsets are
/// added to those of the list.
struct PagePlane {
  std::shared_ptr<Region> ours;
  RemoteRegion theirs;
  uint64_t our_offset = 0, their_offset = 0;
};

/// Some bytes of a region of ours, and where in the peer's; each range as long as it likes.
struct Range {
  uint64_t our_offset = 0;
  uint64_t their_offset = 0;
  uint64_t bytes = 0;
};

struct ScatterPart {
  uint64_t bytes = 0;
  uint64_t source_offset = 0;
  RemoteSpot target;
};

class Engine {
 public:
  /// unavailable: no token, a host or NIC that is not there; exhausted: the port is taken,
  /// or there are no more threads;
  /// invalid_argument: a name or a host_id of more than 256 bytes, cores that are not "auto" or "off",
  /// a device below -1, no transfers at once.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  /// Leaves its peers and ends: transfers under way become `cancelled`.
  ~Engine();

  /// How peers reach this engine. Opaque, to be shipped by any means; holds no secret.
  std::string address() const;
  const Address& self() const { return ground_.self; }

  // --- memory ---

  /// Registers host memory with every NIC. The memory stays the caller's and must outlive the
  /// registration. Overlapping regions are fine (with a GPU, its kernels reach one that lies
  /// within one that was there before, and none that overlaps otherwise). Pins pages, so it costs about
  /// a ms a GiB. Memory that is read-only is read alone: what would fill it is invalid_argument.
  /// invalid_argument: memory that is not there, or behind the end of the file that is mapped.
  Result<std::shared_ptr<Region>> register_memory(std::byte* base, uint64_t bytes);
  /// The same for memory of the engine's GPU (of cudaMalloc). unsupported for another GPU's, and for
  /// memory that the driver shares with no other process (of cuMemCreate, of cudaMallocAsync).
  Result<std::shared_ptr<Region>> register_gpu_memory(uint64_t address, uint64_t bytes);
  /// Peers are told, and when it returns no byte can land there any more: the memory may be freed.
  /// invalid_argument while transfers of this engine use it, and of a region that is not its own (any
  /// more). timeout: not yet; call it again.
  Status unregister(const Region& region, Deadline deadline);
  /// The region for peers. invalid_argument: it is not this engine's (any more).
  Result<std::string> descriptor(const Region& region) const;
  Result<RemoteRegion> import(std::string_view descriptor) const;
  Result<Address> import_address(std::string_view address) const;

  // --- transfers ---

  Result<TicketPtr> write(const LocalSpot& source, const RemoteSpot& target, uint64_t bytes,
                          TransferOptions options = {});
  Result<TicketPtr> read(const LocalSpot& target, const RemoteSpot& source, uint64_t bytes,
                         TransferOptions options = {});
  Result<TicketPtr> write_pages(const std::shared_ptr<Region>& source, const RemoteRegion& target,
                                const PageList& pages, TransferOptions options = {});
  Result<TicketPtr> read_pages(const std::shared_ptr<Region>& target, const RemoteRegion& source,
                               const PageList& pages, TransferOptions options = {});
  /// The same pages of several planes, complete together: each page of each plane counts. At most
  /// kMostPlanes (192), all regions of one peer; ours all of the host or all of the GPU, and so
  /// theirs. invalid_argument names the plane. The list is checked and sent once, so that a plane costs a
  /// small part of what a call does.
  Result<TicketPtr> write_pages(std::span<const PagePlane> planes, const PageList& pages,
                                TransferOptions options = {});
  Result<TicketPtr> read_pages(std::span<const PagePlane> planes, const PageList& pages,
                               TransferOptions options = {});
  /// Ranges of two regions, complete together: what is no list of pages. Counts as many as there are.
  Result<TicketPtr> move_ranges(Transfer::Kind kind, const std::shared_ptr<Region>& local,
                                const RemoteRegion& remote, std::span<const Range> ranges,
                                TransferOptions options = {});
  /// One source, many targets: a ticket each, in order. All are checked before the first begins.
  Result<std::vector<TicketPtr>> scatter(const std::shared_ptr<Region>& source,
                                         std::span<const ScatterPart> parts,
                                         const TransferOptions& options = {});
  /// Adds one to the immediate's count at every peer: a barrier is this, and expect() of as many.
  Result<std::vector<TicketPtr>> signal(std::span<const Address> peers, uint32_t immediate,
                                        const TransferOptions& options = {});
  /// Bytes for the peer's receive(): at most 64 KiB, in order.
  Result<TicketPtr> send(const Address& peer, std::string_view bytes, TransferOptions options = {});
  /// The same for the peer's notifications.
  Result<TicketPtr> notify(const Address& peer, std::string_view bytes,
                           TransferOptions options = {});
  /// Connects now, so that the first transfer does not have to.
  Result<TicketPtr> connect(const Address& peer, TransferOptions options = {});

  /// The ticket ends as `cancelled` when nothing of it can land any more, or as it would have when
  /// that is too late.
  void cancel(const TicketPtr& ticket);
  /// Takes our transfers to the peer back, as cancel() does, then ends the connection: after a second
  /// of waiting for them at the latest. A transfer that is begun meanwhile makes another one.
  void disconnect(const Address& peer);

  // --- what arrives ---

  /// Ends when `count` more have arrived under the immediate, and takes them off its count.
  /// invalid_argument when it is expected already. `flag`, where given, is 8 aligned bytes of the host's
  /// memory or of the engine's GPU's (flags.h), which become 1 just before; they must stay until the
  /// ticket has ended. invalid_argument: a flag that is neither.
  Result<TicketPtr> expect(uint32_t immediate, uint64_t count, Callback callback = {},
                           std::atomic<uint64_t>* flag = nullptr);
  /// The expectation ends as `cancelled`, if it is that of `only` (null: whoever's); what has arrived
  /// stays counted.
  void forget(uint32_t immediate, const Ticket* only = nullptr);
  /// The same, and what has arrived is not counted any more: of an immediate that is not used again.
  void discard(uint32_t immediate);
  uint64_t count(uint32_t immediate) const { return ground_.counters.count(immediate); }
  std::optional<Message> receive(Deadline deadline) { return ground_.messages.take(deadline); }
  std::optional<Message> take_notification(Deadline deadline) {
    return ground_.notifications.take(deadline);
  }

  /// Calls once, on the thread of callbacks, when the next message or notification is here. False:
  /// one is here already, and nobody will call.
  bool tell_of_message(Callback callback) { return tell(ground_.messages, std::move(callback)); }
  bool tell_of_notification(Callback callback) {
    return tell(ground_.notifications, std::move(callback));
  }

  /// A word of 64 bits that a kernel, a graph or a thread bumps, and a callback (watch.h). It must
  /// end before the engine. exhausted: 512 are watched, or there is no thread to look at them.
  Result<std::unique_ptr<Watch>> watch(WatchCallback callback);

  // --- sight ---

  /// Where the worker runs ("worker: cores 24-47: near eth0 (node 1)"), then a line for every connection:
  /// state, rails, rates, troubles.
  std::vector<std::string> health(Deadline deadline);
  const Stats& stats() const { return ground_.stats; }
  const EngineOptions& options() const { return ground_.options; }

 private:
  Engine(const EngineOptions& options, const std::string& token);
  bool tell(Mailbox& mailbox, Callback callback);
  void end_expectation(Callback callback, const Status& why);
  Result<TicketPtr> submit(const Address& target, std::unique_ptr<Transfer> transfer);
  /// All of them, or, when it fails, none.
  Result<std::vector<TicketPtr>> submit_all(std::span<const Address* const> targets,
                                            std::vector<std::unique_ptr<Transfer>> transfers);
  Result<std::unique_ptr<Transfer>> make_write(const LocalSpot& source, const RemoteSpot& target,
                                               uint64_t bytes, TransferOptions options);
  Result<std::unique_ptr<Transfer>> make(Transfer::Kind kind, std::string what,
                                         std::vector<TransferPlane> planes,
                                         std::vector<Stretch> stretches, TransferOptions options);
  Status begin_use(const std::string& what, std::span<const TransferPlane> planes);
  Result<TicketPtr> message(const Address& peer, MessageKind kind, std::string_view bytes,
                            TransferOptions options);
  Result<TicketPtr> pages(Transfer::Kind kind, std::span<const PagePlane> planes,
                          const PageList& list, TransferOptions options);

  Ground ground_;
  std::unique_ptr<Watcher> watcher_;
  std::atomic<uint64_t> next_transfer_ = 1;
  std::unique_ptr<Worker> worker_;  // last: it uses all of the above
};

}  // namespace braid::engine
