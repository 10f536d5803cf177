#include "comm/device/rdma.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "comm/device/host_share.h"
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
  return static_cast<double>(percent) / 100;
}

}  // namespace

Result<std::unique_ptr<Rdma>> Rdma::create(Comm::State& state, sys::Cuda& cuda,
                                           const RdmaSetup& setup, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const double share, share_given(state.config));
  const auto gpu = cuda.device(setup.ordinal);  // without an address every NIC is as near
  BRAID_ASSIGN_OR_RETURN(const NicChoice nic, choose_nic(state.config, state.fabric, state.rank(),
                                                         gpu.ok() ? gpu.value().pci_address : ""));
  std::unique_ptr<Rdma> rdma(new Rdma(state.size()));
  rdma->words_ = "off: " + (state.size() == 1 ? "one rank" : nic.why_off);
  if (state.size() == 1 || !nic.why_off.empty()) return rdma;
  if (nic.is_real) rdma->links_ = fabric::gpu_links(state.fabric);
  const Status started = rdma->start(state, cuda, nic, setup, deadline);
  if (!started.ok()) {
    rdma->stop();
    // All ranks got the same verdict, unless the ranks could not even tell each other.
    const bool must_be = is_wanted(state.config);
    if (must_be || deadline.passed() || state.group->broken())
      return started.with_context("BRAID_GPU_RDMA");
    log::info("comm", "gpu {}: rdma is off: {}", setup.ordinal, started.message());
    rdma->words_ = "off: " + started.message();
    return rdma;
  }
  log::info("comm", "gpu {}: rdma is on: {}", setup.ordinal, rdma->words_);
  rdma->is_share_given_ = share > 0;
  for (const plan::Op op : plan::kAllOps) rdma->set_share(op, share);
  return rdma;
}

Status Rdma::start(Comm::State& state, sys::Cuda& cuda, const NicChoice& nic,
                   const RdmaSetup& setup, Deadline deadline) {
  const Result<sys::FabricLibrary*> library =
      setup.library != nullptr ? Result<sys::FabricLibrary*>(setup.library) : sys::real_fabric();
  BRAID_ASSIGN_OR_RETURN(
      std::unique_ptr<Mirrors> mirrors,
      transport::rdma::connect_mirrors(
          library, *state.group,
          {nic.provider, nic.address, setup.slot_bytes, setup.num_slots, setup.num_lanes,
           is_wanted(state.config) ? INT64_MAX : kFoundGreetingNs},
          deadline));
  words_ = how_in_words(nic, reaches_gpus(*library.value(), nic));
  ring_.slot_bytes = setup.slot_bytes;
  ring_.num_slots = setup.num_slots;
  ring_.num_lanes = setup.num_lanes;
  unit_bytes_ =
      std::lcm(uint64_t{setup.slot_bytes} * static_cast<uint64_t>(setup.num_lanes), kCutUnit);
  const Status pinned = pin(cuda, *mirrors);
  {
    const std::lock_guard lock(proxy_mutex_);
    proxy_ = std::make_unique<Proxy>(std::move(mirrors));
  }
  // All ranks or none: whoever could not pin says so before anyone uses the ring.
  return group::agree(*state.group, "gpu rdma pinned", pinned, "", deadline).status();
}

Status Rdma::pin(sys::Cuda& cuda, const Mirrors& mirrors) {
  for (int r = 0; r < num_ranks_; ++r) {
    std::byte* const segment = mirrors.segment(r);
    BRAID_ASSIGN_OR_RETURN(const sys::DevicePtr on_device,
                           cuda.register_host(segment, mirrors.segment_bytes()));
    pinned_.emplace_back(cuda, segment);
    ring_.segment[r] = sys::pointer_to<std::byte>(on_device);
  }
  constexpr uint64_t kBytes = sizeof(pcie::RingProgress);
  BRAID_ASSIGN_OR_RETURN(progress_, sys::own<sys::DeviceMemory>(cuda, cuda.alloc(kBytes)));
  ring_.progress = sys::pointer_to<pcie::RingProgress>(progress_.get());
  BRAID_ASSIGN_OR_RETURN(  // not the default one, which waits for other comms' calls
      const auto stream,
      sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal)));
  BRAID_RETURN_IF_ERROR(cuda.fill(progress_.get(), 0, kBytes, stream.get()));
  return cuda.synchronize(stream.get());
}

// The thread first, which uses what is pinned; the mirrors' memory last.
void Rdma::stop_proxy() {
  const std::lock_guard lock(proxy_mutex_);
  if (proxy_) proxy_->stop();
}

void Rdma::stop() {
  std::unique_ptr<Proxy> ended;
  {
    const std::lock_guard lock(proxy_mutex_);
    ended = std::move(proxy_);
  }
  if (ended) ended->stop();
  pinned_.clear();
  progress_.reset();
}

void Rdma::settle() {
  const bool carries = std::any_of(parts_.begin(), parts_.end(),
                                   [](const std::atomic<uint32_t>& parts) { return parts > 0; });
  if (!is_on() || carries) return;
  stop();
  words_ = "off: neither tuning nor BRAID_GPU_RDMA_SHARE gave it a share";
}

Rdma::~Rdma() { stop(); }

bool Rdma::can_carry(plan::Op op) {
  return op == plan::Op::kAllGather || op == plan::Op::kAllToAll || op == plan::Op::kBroadcast;
}

void Rdma::set_share(plan::Op op, double share) {
  const double parts = can_carry(op) ? std::clamp(share, 0.0, 1.0) * plan::kWhole : 0;
  parts_[static_cast<size_t>(op)] = static_cast<uint32_t>(std::lround(parts));
}

double Rdma::share(plan::Op op) const {
  return static_cast<double>(parts_[static_cast<size_t>(op)]) / plan::kWhole;
}

uint64_t Rdma::part(plan::Op op, uint64_t block_bytes, uint32_t pcie_parts) const {
  const uint32_t wanted = parts_[static_cast<size_t>(op)];
  if (!is_on() || wanted == 0) return 0;
  const uint64_t blocks = op == plan::Op::kBroadcast ? 1 : static_cast<uint64_t>(num_ranks_);
  const uint32_t room = plan::rdma_room({op, blocks * block_bytes, num_ranks_}, links_, pcie_parts);
  const auto bytes = static_cast<uint64_t>(static_cast<double>(block_bytes) *
                                           std::min(wanted, room) / plan::kWhole);
  return bytes / unit_bytes_ * unit_bytes_;
}

}  // namespace braid::comm
