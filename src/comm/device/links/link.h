// DeviceLink: a physical channel between the GPUs of a comm. One of them, the base link, is the one
// over which GPUs have each other's memory mapped; it carries the beginnings of messages, and
// kernels may store over it. The links beside it carry the ends.
//
//   shares    how much of a message a link beside carries: what tuning found, an option said, or
//             stage 2 decided (share_table.h)
//   part      the bytes of one block that a call gives it, by the shares that hold
//   enqueue   moves a part: what this rank sends, and what it gets, where it belongs
//
// Links are of two kinds, and say which (writes_peer_memory()). One that writes into peers' memory
// needs nobody at the other end: who sends knows where the bytes belong, they are there when the
// sender's stream has passed, and a barrier of the call tells the reader. Over any other link both
// ends enqueue the part, and the reader's stream has all of it once it has passed.
//
// A link knows no operation: it moves flows, each from one rank to another or to all others. All
// ranks enqueue the same parts in the same order. How it moves them, and how a rank that never
// comes ends the waits, is its own affair; status() tells what ended it.
//
// A new link is a folder under transport/ (or none), an object of this kind, a line in registry.cc
// and one in tests/conformance/device_links.h, where a suite runs through it.
//
// Threads: as comm::Device; status(), state() and shares() by any.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "comm/device/call_watch.h"
#include "comm/device/kernel_cache.h"
#include "comm/device/shares/share_balance.h"
#include "comm/device/shares/share_table.h"
#include "comm/state.h"
#include "fabric/types.h"
#include "sys/cuda/api.h"
#include "sys/cuda/owned.h"
#include "sys/fabric/api.h"
#include "transport/nvlink/team.h"

namespace braid::comm {

/// One transfer over a link, as this rank sees it: it either sends or receives.
struct Flow {
  int sender = 0;
  int reader = 0;                     // everyone_of(size): all others, the same bytes
  const std::byte* source = nullptr;  // null: this rank receives
  // Where it is to be: this rank's memory where it receives. Of a flow that it sends: the reader's,
  // as this rank reaches it, for a link that writes into peers' memory, which none else looks at.
  std::byte* destination = nullptr;
  uint64_t bytes = 0;
};
constexpr int everyone_of(int num_ranks) { return num_ranks; }

/// What a link is to move of one call.
struct LinkPart {
  static constexpr size_t kMostFlows = 2 * nvlink::kMostRanks;
  std::array<Flow, kMostFlows> flows{};
  int num_flows = 0;
  int agreed_flows = 0;         // as many as all ranks say; by it they agree on blocks of a flow
  bool is_beside_sums = false;  // sums run meanwhile, which need the GPU's memory, too
  void add(const Flow& flow) { flows[static_cast<size_t>(num_flows++)] = flow; }
  std::span<const Flow> all() const { return {flows.data(), static_cast<size_t>(num_flows)}; }
  bool is_empty() const { return num_flows == 0; }
};

/// How much of a block is asked for.
struct PartRequest {
  plan::Op op;
  uint64_t block_bytes = 0;  // of the whole buffer, for all_reduce and broadcast
  uint64_t most_bytes = 0;   // of these, that there is room for
  double used = 1;           // of the share that holds
  uint64_t taken_bytes = 0;  // that links before this one carry
};

/// What a link is made from. What is pointed to outlives it.
struct LinkGround {
  Comm::State& state;
  sys::Cuda& cuda;
  int ordinal = 0;           // of the GPU, whose context is current whenever a link is called
  const nvlink::Team& team;  // complete when connect() is called
  KernelCache& kernels;
  CallWatch& call_watch;
  sys::FabricLibrary* nics = nullptr;  // null: the real library, if a NIC is to be used
};

/// How tuning finds a link's shares.
enum class LinkTuning {
  kNone,     // given, or it carries nothing
  kBySize,   // for a short message and a long one, kept in the tuning cache
  kOneSize,  // for a long message, beside the links before it
};

struct LinkTraffic {
  uint64_t sent_slots = 0, received_slots = 0;
};
/// What health and explain tell of a link.
struct DeviceLinkState {
  bool is_on = true;
  std::string how;                          // bytes go; or why it is off
  std::optional<LinkTraffic> traffic = {};  // where it is counted
};

class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  /// Name, kind and rate; the rate is 0 where nothing is known of it.
  virtual fabric::Link facts() const = 0;
  /// Of this rank alone: options, kernels, its stream.
  virtual Status prepare() = 0;
  /// What all ranks must have alike: "64x131072,lanes:6:0".
  virtual std::string shape() const { return {}; }
  /// Collective: the same verdict on all ranks. `shape`: of all links, and what else of a comm must
  /// be alike.
  virtual Status connect(const std::string& shape, Deadline deadline) = 0;
  /// Collective, after tuning: stage 2 begins, beside `base`; a link that is to carry nothing may
  /// close.
  virtual Status start(const DeviceLink& /*base*/, Deadline /*deadline*/) { return {}; }
  /// Ends its threads. Memory stays: kernels may still look at it.
  virtual void stop() {}

  virtual bool can_carry(plan::Op op) const = 0;
  /// Blocks whose lengths the ranks of a pair alone know.
  virtual bool can_carry_uneven() const { return false; }
  virtual bool writes_peer_memory() const { return false; }
  /// GB/s that its parts are held to, for experiments; 0: as fast as they go.
  virtual double throttle_gbps() const { return 0; }
  virtual LinkTuning tuning() const { return LinkTuning::kNone; }
  /// Bytes of a block that it carries by the shares that hold: multiples of kCutUnit, of a link
  /// beside. The base link carries whatever the others leave.
  virtual uint64_t part(const PartRequest& request) const = 0;
  /// Behind what is on `stream`, which is stream() or ordered with it; the same parts on all ranks.
  virtual Status enqueue(const LinkPart& part, sys::Stream stream) = 0;
  /// A copy inside this GPU while the link moves something: by few enough blocks where the driver's
  /// would keep the link waiting.
  virtual Status copy_beside(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                             uint64_t bytes);

  /// ok, or what ended it.
  virtual Status status() const { return {}; }
  virtual DeviceLinkState state() const = 0;

  /// A stream of ours for its parts.
  sys::Stream stream() const { return stream_.get(); }
  /// Among the links of its comm; the base link's is 0.
  size_t index() const { return index_; }
  /// Stage 2 hears that what was enqueued of a call is done behind what the stream holds now.
  Status note_done() {
    return balance_ ? balance_->mark(CallStage::kBesideDone, stream()) : Status();
  }
  ShareTable& shares() { return shares_; }
  const ShareTable& shares() const { return shares_; }
  /// Null: its shares stay as they were tuned.
  ShareBalance* balance() const { return balance_.get(); }

 protected:
  explicit DeviceLink(const LinkGround& ground) : ground_(ground) {}
  Status make_stream(sys::StreamPriority priority = sys::StreamPriority::kHigh);
  /// Memory of this GPU, zeros.
  Result<sys::DeviceMemory> zeros(uint64_t bytes);
  /// Tells the observer what of a part this rank sends.
  void note_sent(const LinkPart& part);

  const LinkGround ground_;
  std::unique_ptr<ShareBalance> balance_;

 private:
  friend class LinkSet;
  size_t index_ = 0;  // among the links of its comm, by which observers know it
  sys::OwnedStream stream_;
  ShareTable shares_;
};

}  // namespace braid::comm
