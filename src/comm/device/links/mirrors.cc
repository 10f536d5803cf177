#include "comm/device/links/mirrors.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "comm/device/shares/tuned_share.h"
#include "fabric/merge.h"
#include "group/agree.h"
#include "plan/x16.h"

namespace braid::comm {

using transport::rdma::Mirrors;

namespace {

// A NIC that was found, not asked for, may be one that reaches no other (another subnet, storage):
// nobody is to wait long for that.
constexpr int64_t kFoundGreetingNs = 2'000'000'000;

bool is_wanted(const Config& config) { return config.text("BRAID_GPU_RDMA") == "on"; }

/// The option's share, or none.
Result<double> share_given(const Config& config) {
  const int64_t percent = config.integer("BRAID_GPU_RDMA_SHARE");
  if (percent > 100)
    return invalid_argument("BRAID_GPU_RDMA_SHARE: asked for 0 to 100 percent, found {}", percent);
  return static_cast<double>(std::max<int64_t>(percent, 0)) / 100;
}

}  // namespace

MirrorLink::~MirrorLink() { close(); }

fabric::Link MirrorLink::facts() const {
  for (const fabric::Link& link : links_)
    if (link.kind == fabric::LinkKind::kRdma) return link;
  fabric::Link unknown;
  unknown.name = "rdma";
  unknown.kind = fabric::LinkKind::kRdma;
  return unknown;
}

Status MirrorLink::prepare() {
  const Config& config = ground_.state.config;
  BRAID_ASSIGN_OR_RETURN(given_share_, share_given(config));
  const auto gpu = ground_.cuda.device(ground_.ordinal);  // without an address all NICs are as near
  BRAID_ASSIGN_OR_RETURN(nic_, choose_nic(config, ground_.state.fabric, ground_.state.rank(),
                                          gpu.ok() ? gpu.value().pci_address : ""));
  how_ = "off: " + (ground_.state.size() == 1 ? "one rank" : nic_.why_off);
  if (ground_.state.size() == 1 || !nic_.why_off.empty()) return {};
  if (nic_.is_real) links_ = fabric::gpu_links(ground_.state.fabric);
  BRAID_RETURN_IF_ERROR(read_slots(config, ground_.state.size(), ring_));
  BRAID_RETURN_IF_ERROR(kernels_.prepare(ground_));
  ring_.num_lanes = kernels_.engine().lanes_of(ground_.state.size());
  return make_stream();
}

std::string MirrorLink::shape() const {
  const Config& config = ground_.state.config;
  return fmt::format("rdma:{}:{}:{}", config.text("BRAID_GPU_RDMA"),
                     config.integer("BRAID_GPU_RDMA_SHARE"), config.text("BRAID_RDMA_PROVIDER"));
}

Status MirrorLink::connect(const std::string& /*shape*/, Deadline deadline) {
  if (ground_.state.size() == 1 || !nic_.why_off.empty()) return {};
  const Status opened = open(deadline);
  if (!opened.ok()) {
    close();
    // All ranks got the same verdict, unless the ranks could not even tell each other.
    const bool must_be = is_wanted(ground_.state.config);
    if (must_be || deadline.passed() || ground_.state.group->broken())
      return opened.with_context("BRAID_GPU_RDMA");
    log::info("comm", "gpu {}: rdma is off: {}", ground_.ordinal, opened.message());
    how_ = "off: " + opened.message();
    return {};
  }
  log::info("comm", "gpu {}: rdma is on: {}", ground_.ordinal, how_);
  for (const plan::Op op : plan::kAllOps)
    if (can_carry(op)) shares().set_tuned(op, given_share_);
  return {};
}

Status MirrorLink::open(Deadline deadline) {
  const Result<sys::FabricLibrary*> library =
      ground_.nics != nullptr ? Result<sys::FabricLibrary*>(ground_.nics) : sys::real_fabric();
  BRAID_ASSIGN_OR_RETURN(
      std::unique_ptr<Mirrors> mirrors,
      transport::rdma::connect_mirrors(
          library, *ground_.state.group,
          {nic_.provider, nic_.address, ring_.slot_bytes, ring_.num_slots, ring_.num_lanes,
           is_wanted(ground_.state.config) ? INT64_MAX : kFoundGreetingNs},
          deadline));
  how_ = how_in_words(nic_, reaches_gpus(*library.value(), nic_));
  unit_bytes_ =
      std::lcm(uint64_t{ring_.slot_bytes} * static_cast<uint64_t>(ring_.num_lanes), kCutUnit);
  Status ready = pin(*mirrors);
  auto proxy = std::make_unique<Proxy>(std::move(mirrors));
  if (ready.ok()) ready = proxy->begin();
  {
    const std::lock_guard lock(proxy_mutex_);
    proxy_ = std::move(proxy);
  }
  // All ranks or none: whoever could not pin says so before anyone uses the ring.
  return group::agree(*ground_.state.group, "gpu rdma pinned", ready, "", deadline).status();
}

Status MirrorLink::pin(const Mirrors& mirrors) {
  for (int r = 0; r < ground_.state.size(); ++r) {
    std::byte* const segment = mirrors.segment(r);
    BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr on_device,
                           ground_.cuda.register_host(segment, mirrors.segment_bytes()));
    pinned_.emplace_back(ground_.cuda, segment);
    ring_.segment[r] = sys::pointer_to<std::byte>(on_device);
  }
  BRAID_ASSIGN_OR_RETURN(progress_, zeros(sizeof(pcie::RingProgress)));
  ring_.progress = sys::pointer_to<pcie::RingProgress>(progress_.get());
  return {};
}

// The thread first, which uses what is pinned; the mirrors' memory last.
void MirrorLink::stop() {
  const std::lock_guard lock(proxy_mutex_);
  if (proxy_) proxy_->stop();
}

void MirrorLink::close() {
  std::unique_ptr<Proxy> ended;
  {
    const std::lock_guard lock(proxy_mutex_);
    ended = std::move(proxy_);
  }
  if (ended) ended->stop();
  pinned_.clear();
  progress_.reset();
}

Status MirrorLink::start(const DeviceLink& /*base*/, Deadline /*deadline*/) {
  const bool carries = std::any_of(std::begin(plan::kAllOps), std::end(plan::kAllOps),
                                   [this](plan::Op op) { return shares().parts(op, 0) > 0; });
  if (!is_on() || carries) return {};
  close();
  const std::lock_guard lock(proxy_mutex_);  // state() may be asked
  how_ = "off: neither tuning nor BRAID_GPU_RDMA_SHARE gave it a share";
  return {};
}

bool MirrorLink::is_on() const {
  const std::lock_guard lock(proxy_mutex_);
  return proxy_ != nullptr;
}

Status MirrorLink::status() const {
  const std::lock_guard lock(proxy_mutex_);
  return proxy_ ? proxy_->mirrors().status() : Status();
}

DeviceLinkState MirrorLink::state() const {
  const std::lock_guard lock(proxy_mutex_);
  if (!proxy_) return {false, how_, LinkTraffic{}};
  const auto traffic = proxy_->mirrors().traffic();
  return {true, how_, LinkTraffic{traffic.sent_slots, traffic.received_slots}};
}

bool MirrorLink::can_carry(plan::Op op) const {
  return op == plan::Op::kAllGather || op == plan::Op::kAllToAll || op == plan::Op::kBroadcast;
}

LinkTuning MirrorLink::tuning() const {
  return is_on() && given_share_ == 0 ? LinkTuning::kOneSize : LinkTuning::kNone;
}

uint64_t MirrorLink::part(const PartRequest& r) const {
  if (!is_on() || !can_carry(r.op)) return 0;
  const uint32_t wanted = shares().parts(r.op, r.block_bytes);
  if (wanted == 0) return 0;
  const auto block = static_cast<double>(r.block_bytes);
  const auto taken_parts = static_cast<uint32_t>(static_cast<double>(r.taken_bytes) / block *
                                                 static_cast<double>(plan::kWhole));
  const auto num_ranks = static_cast<uint64_t>(ground_.state.size());
  const uint64_t blocks = r.op == plan::Op::kBroadcast ? 1 : num_ranks;
  const uint32_t room =
      plan::rdma_room({r.op, blocks * r.block_bytes, ground_.state.size()}, links_, taken_parts);
  const auto bytes = static_cast<uint64_t>(block * std::min(wanted, room) / plan::kWhole);
  return std::min(bytes / unit_bytes_ * unit_bytes_,
                  (r.block_bytes - r.taken_bytes) / kCutUnit * kCutUnit);
}

// The proxy looks at the lanes of as many flows as there are ranks, and at no others.
Status MirrorLink::enqueue(const LinkPart& part, sys::Stream stream) {
  note_sent(part);
  return kernels_.run(ground_, stream, ring_, part, ring_.num_lanes);
}

}  // namespace braid::comm
