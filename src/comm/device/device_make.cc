// A device's making and its end: kernels, memory of its own, the arena that peers map, the host
// ring.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "comm/device/device.h"
#include "comm/device/nvlinks.h"
#include "group/agree.h"
#include "sys/cuda/owned.h"
#include "transport/nvlink/fatbins.h"
#include "transport/pcie/fatbins.h"
#include "transport/pcie/local_copy.h"

namespace braid::comm {

namespace {

constexpr size_t kHostPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<Device>> Device::create(Comm::State& state, sys::Cuda& cuda, int ordinal,
                                               const AreaSizes& areas, sys::FabricLibrary* nics) {
  const Deadline deadline = Deadline::after_ns(state.config.duration_ns("BRAID_TIMEOUT"));
  std::unique_ptr<Device> device(new Device(state, cuda, ordinal));
  device->layout_.areas = areas;
  Status own = device->prepare();
  BRAID_ASSIGN_OR_RETURN(device->arena_,
                         nvlink::share_window(*state.group, cuda,
                                              {"gpu arena", ordinal, device->arena_memory_,
                                               device->layout_.bytes(), std::move(own)},
                                              deadline));
  for (int r = 0; r < state.size(); ++r)
    device->board_.cells[r] = sys::pointer_to<nvlink::BoardCell>(device->arena_.at(r));
  BRAID_RETURN_IF_ERROR(device->make_ring(deadline));
  BRAID_RETURN_IF_ERROR(device->make_rdma(nics, deadline));
  BRAID_RETURN_IF_ERROR(device->settle_lines(deadline));
  device->watch_ = std::thread([raw = device.get()] { raw->watch(); });
  return device;
}

Status Device::prepare() {
  constexpr uint64_t kPageBytes = ArenaLayout::kPageBytes;
  const uint64_t asked_bytes = state_.config.bytes("BRAID_GPU_SCRATCH");
  layout_.scratch_bytes = asked_bytes / kPageBytes * kPageBytes;
  if (layout_.areas.scratch_bytes != 0)
    layout_.scratch_bytes = std::min(layout_.scratch_bytes, layout_.areas.scratch_bytes);
  if (layout_.scratch_bytes < 8 * kPageBytes)
    return invalid_argument("BRAID_GPU_SCRATCH: asked for at least 16 MiB, found {} bytes",
                            asked_bytes);
  packet_limit_ = state_.config.bytes("BRAID_GPU_PACKETS");
  line_limit_ = state_.config.bytes("BRAID_GPU_LINES");
  direct_limit_ = state_.config.bytes("BRAID_GPU_DIRECT");
  if (layout_.areas.direct_limit != 0)
    direct_limit_ = std::min(direct_limit_, layout_.areas.direct_limit);
  BRAID_RETURN_IF_ERROR(check_slots());
  sum_blocks_ =
      static_cast<uint64_t>(std::max<int64_t>(0, state_.config.integer("BRAID_GPU_SUM_BLOCKS")));
  if (state_.size() > nvlink::kMostRanks)
    return unsupported("{} ranks: GPUs of one comm are at most {}", state_.size(),
                       nvlink::kMostRanks);
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(ordinal_));
  most_shared_bytes_ = static_cast<uint32_t>(std::max(0, facts.max_shared_bytes_per_block));
  BRAID_ASSIGN_OR_RETURN(barrier_kernel_, kernel(kernels::barrier_fatbin(), "braid_barrier"));
  BRAID_ASSIGN_OR_RETURN(barrier_of_pairs_kernel_,
                         kernel(kernels::barrier_fatbin(), "braid_barrier_of_pairs"));
  BRAID_ASSIGN_OR_RETURN(pairs_kernel_, kernel(kernels::barrier_fatbin(), "braid_meet_pairs"));
  BRAID_ASSIGN_OR_RETURN(short_kernel_,
                         kernel(kernels::short_blocks_fatbin(), "braid_short_blocks"));
  BRAID_RETURN_IF_ERROR(load_ring(facts));
  BRAID_RETURN_IF_ERROR(read_link_cap());
  for (int side = 0; side < kNumSides; ++side) {
    const auto priority =
        side == kPushes ? sys::StreamPriority::kNormal : sys::StreamPriority::kHigh;
    BRAID_ASSIGN_OR_RETURN(sides_[static_cast<size_t>(side)], cuda_.create_stream(priority));
  }
  BRAID_RETURN_IF_ERROR(make_page());
  BRAID_RETURN_IF_ERROR(make_arena());
  for (sys::Event& event : events_) {
    BRAID_ASSIGN_OR_RETURN(event, cuda_.create_event(sys::EventTiming::kOff));
  }
  BRAID_ASSIGN_OR_RETURN(last_call_, cuda_.create_event(sys::EventTiming::kOff));
  for (Captured& each : captures_) {
    BRAID_ASSIGN_OR_RETURN(each.last_call, cuda_.create_event(sys::EventTiming::kOff));
  }
  call_watch_.start(state_.observer.get(), cuda_, sides_[kCopies],
                    [this] { return !look_for_trouble().ok(); });
  return {};
}

Status Device::load_ring(const sys::DeviceFacts& facts) {
  BRAID_ASSIGN_OR_RETURN(ring_engine_, choose_ring_engine(state_.config, facts));
  BRAID_ASSIGN_OR_RETURN(ring_kernel_, kernel(kernels::host_ring_fatbin(), "braid_host_ring"));
  if (!ring_engine_.has_bulk) return {};
  BRAID_ASSIGN_OR_RETURN(bulk_ring_kernel_, kernel(kernels::host_ring_bulk_fatbin(),
                                                   "braid_host_ring_bulk", pcie::kBulkSharedBytes));
  BRAID_ASSIGN_OR_RETURN(local_copy_kernel_, kernel(kernels::local_copy_fatbin(),
                                                    "braid_local_copy", pcie::kLocalSharedBytes));
  return {};
}

Status Device::read_link_cap() {
  constexpr std::string_view kPrefix = "nvlink:";
  const std::string text = state_.config.text("BRAID_LINK_CAP");
  if (text.empty()) return {};
  if (!text.starts_with(kPrefix))
    return invalid_argument("BRAID_LINK_CAP: asked for nvlink:RATE, found '{}'", text);
  const Result<double> rate = parse_rate_gbps(text.substr(kPrefix.size()));
  if (!rate.ok()) return invalid_argument("BRAID_LINK_CAP: {}", rate.status().message());
  link_cap_gbps_ = rate.value();
  if (link_cap_gbps_ <= 0)
    return invalid_argument("BRAID_LINK_CAP: asked for a rate above 0, found '{}'", text);
  if (state_.rank() == 0)
    log::warn("comm", "NVLink is held to {} GB/s: BRAID_LINK_CAP={}", link_cap_gbps_, text);
  BRAID_ASSIGN_OR_RETURN(hold_kernel_, kernel(kernels::hold_fatbin(), "braid_hold"));
  return {};
}

// A ring without slots, or with empty ones, would never end.
Status Device::check_slots() {
  constexpr uint64_t kLeastBytes = 128, kMostBytes = 16 << 20;
  constexpr int64_t kMostSlots = 1024;
  const uint64_t asked = state_.config.bytes("BRAID_GPU_SLOT");
  const uint64_t slot_bytes = asked != 0 ? asked : size_of_slots(state_.size());
  if (slot_bytes < kLeastBytes || slot_bytes > kMostBytes)
    return invalid_argument("BRAID_GPU_SLOT: asked for {} to {} bytes, found {}", kLeastBytes,
                            kMostBytes, slot_bytes);
  const int64_t num_slots = state_.config.integer("BRAID_GPU_SLOTS");
  if (num_slots < 1 || num_slots > kMostSlots)
    return invalid_argument("BRAID_GPU_SLOTS: asked for 1 to {}, found {}", kMostSlots, num_slots);
  ring_.slot_bytes = static_cast<uint32_t>(slot_bytes) & ~127U;
  ring_.num_slots = static_cast<uint32_t>(num_slots);
  return {};
}

Result<sys::Kernel> Device::kernel(std::span<const std::byte> fatbin, const char* name,
                                   uint32_t shared_bytes) {
  const auto known = kernels_.find(name);
  if (known != kernels_.end()) return known->second;
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel found, loaded_->find(fatbin, name, shared_bytes));
  return kernels_[name] = found;
}

Status Device::make_page() {
  void* memory =
      mmap(nullptr, kHostPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return exhausted("gpu trouble page: {} bytes", kHostPageBytes);
  page_ = new (memory) Page{};
  BRAID_ASSIGN_OR_RETURN(page_on_device_, cuda_.register_host(memory, kHostPageBytes));
  pinned_.push_back(memory);
  team_.rank = state_.rank();
  team_.size = state_.size();
  team_.timeout_ns = state_.config.duration_ns("BRAID_TIMEOUT");
  team_.trouble = sys::pointer_to<nvlink::Trouble>(page_on_device_ + offsetof(Page, trouble));
  team_.must_abort = sys::pointer_to<uint32_t>(page_on_device_ + offsetof(Page, must_abort));
  return {};
}

Status Device::make_arena() {
  BRAID_ASSIGN_OR_RETURN(arena_memory_, cuda_.alloc(layout_.bytes()));
  arena_hold_ = nvlink::lend(cuda_, ordinal_, arena_memory_);
  BRAID_ASSIGN_OR_RETURN(local_memory_, cuda_.alloc(sizeof(LocalMemory)));
  team_.has_failed = sys::pointer_to<uint32_t>(local_at(offsetof(LocalMemory, has_failed)));
  board_.numbers = sys::pointer_to<uint64_t>(local_at(offsetof(LocalMemory, numbers)));
  board_.pair_numbers = sys::pointer_to<uint64_t>(local_at(offsetof(LocalMemory, pair_numbers)));
  ring_.progress = sys::pointer_to<pcie::RingProgress>(local_at(offsetof(LocalMemory, progress)));
  // Not the default stream, which would wait for other comms' calls on the caller's.
  const sys::Stream stream = sides_[kCopies];
  BRAID_RETURN_IF_ERROR(cuda_.fill(arena_memory_, 0, ArenaLayout::kScratchAt, stream));
  BRAID_RETURN_IF_ERROR(cuda_.fill(arena_memory_ + layout_.packets_at(), 0,
                                   layout_.zeros_end() - layout_.packets_at(), stream));
  BRAID_RETURN_IF_ERROR(cuda_.fill(local_memory_, 0, sizeof(LocalMemory), stream));
  return cuda_.synchronize(stream);  // before any peer learns of it
}

Status Device::make_ring(Deadline deadline) {
  transport::SegmentRequest request;
  request.topic = "gpu host ring";
  ring_.num_lanes = ring_engine_.lanes_of(1);
  request.bytes =
      pcie::segment_bytes(state_.size(), ring_.slot_bytes, ring_.num_slots, ring_.num_lanes);
  // Where lanes were asked for, blocks decide nothing: some ranks may move them by bulk copies and
  // others not.
  const int num_blocks = ring_engine_.asked_lanes != 0 ? 0 : ring_engine_.num_blocks;
  request.shape = fmt::format(
      "{}x{},lanes:{}:{},sums:{},packets:{},lines:{},direct:{},cap:{},rdma:{}:{}:{}",
      ring_.num_slots, ring_.slot_bytes, num_blocks, ring_engine_.asked_lanes, sum_blocks_,
      packet_limit_, line_limit_, direct_limit_, link_cap_gbps_,
      state_.config.text("BRAID_GPU_RDMA"), state_.config.integer("BRAID_GPU_RDMA_SHARE"),
      state_.config.text("BRAID_RDMA_PROVIDER"));
  request.host_id = state_.config.text("BRAID_HOST_ID");
  BRAID_ASSIGN_OR_RETURN(segments_, transport::share_segments(*state_.group, request, deadline));
  Status own;
  for (int r = 0; r < state_.size() && own.ok(); ++r) {
    const auto pinned = cuda_.register_host(segments_->of(r), request.bytes);
    own = pinned.status();
    if (!own.ok()) break;
    pinned_.push_back(segments_->of(r));
    ring_.segment[r] = sys::pointer_to<std::byte>(pinned.value());
  }
  // All ranks or none: whoever could not pin says so before anyone uses the ring.
  return group::agree(*state_.group, "gpu host ring pinned", own, "", deadline)
      .status()
      .with_context("gpu host ring");
}

Status Device::make_rdma(sys::FabricLibrary* nics, Deadline deadline) {
  const RdmaSetup setup{ordinal_, ring_.slot_bytes, ring_.num_slots, host_lanes(size()), nics};
  BRAID_ASSIGN_OR_RETURN(rdma_, Rdma::create(state_, cuda_, setup, deadline));
  return {};
}

// Lines must not tear (coll/lines/lines.cuh): all pairs have NVLink, or no rank uses them.
Status Device::settle_lines(Deadline deadline) {
  if (size() == 1) return {};
  BRAID_ASSIGN_OR_RETURN(const Nvlinks links,
                         find_nvlinks(*state_.group, cuda_, ordinal_, deadline));
  least_sms_ = links.least_sms;
  shares_gpus_ = links.are_shared;
  if (links.why_not.empty() || line_limit_ == 0) return {};
  if (rank() == 0) log::info("comm", "gpu messages do not go by lines: {}", links.why_not);
  line_limit_ = 0;
  return {};
}

// The watch is through before: what it finds then is not news for the other ranks.
void Device::end_waits() {
  stop_watch();
  std::atomic_ref(page_->must_abort).store(1);
}

void Device::stop_watch() {
  must_stop_ = true;
  if (watch_.joinable()) watch_.join();
}

void Device::detach(bool in_peace) {
  stop_watch();
  const bool breaks_off = !in_peace || state_.group->broken() || !status().ok();
  if (breaks_off) end_waits();
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  for (const sys::Stream stream : sides_)
    if (stream.handle != nullptr) (void)cuda_.synchronize(stream);
  (void)finish_last_call();
  call_watch_.settle();
  is_left_ = has_captures_ && !are_graphs_through(!breaks_off);
  if (is_left_) {
    if (rdma_) rdma_->stop_proxy();
    return;
  }
  has_captures_ = false;
  registered_.clear();
  forgotten_.clear();
  arena_ = {};
  if (room_) room_->window = {};
}

// Nothing tells when a replay ends: all of the GPU's work is waited for. Where ours was broken off
// other work may be stuck, and is not waited for long.
bool Device::are_graphs_through(bool in_peace) {
  if (in_peace) return cuda_.synchronize_device().ok();
  constexpr auto kPatience = std::chrono::seconds(2);
  auto through = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = through->get_future();
  std::thread([&cuda = cuda_, ordinal = ordinal_, through] {
    const sys::RelaxedCapture relaxed(cuda);
    const auto scope = sys::CurrentDevice::use(cuda, ordinal);
    through->set_value(cuda.synchronize_device().ok());
  }).detach();
  return answer.wait_for(kPatience) == std::future_status::ready && answer.get();
}

void Device::leave(std::shared_ptr<Device> device) {
  static std::mutex mutex;
  static auto* const left = new std::vector<std::shared_ptr<Device>>;
  const std::lock_guard lock(mutex);
  log::warn("comm",
            "gpu {}: a graph was still running when its comm was broken off: the comm's "
            "memory is left to it",
            device->ordinal());
  left->push_back(std::move(device));
}

Device::~Device() {
  // Owners need a context to give back.
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  if (page_ != nullptr) detach(false);
  balance_.reset();
  rdma_.reset();
  call_watch_ = {};
  for (const sys::Stream stream : sides_)
    if (stream.handle != nullptr) (void)cuda_.destroy_stream(stream);
  for (const sys::Event event : events_)
    if (event.handle != nullptr) (void)cuda_.destroy_event(event);
  for (const Captured& each : captures_)
    if (each.last_call.handle != nullptr) (void)cuda_.destroy_event(each.last_call);
  if (last_call_.handle != nullptr) (void)cuda_.destroy_event(last_call_);
  for (void* memory : pinned_) (void)cuda_.unregister_host(memory);
  if (page_ != nullptr) munmap(page_, kHostPageBytes);
  if (local_memory_ != 0) (void)cuda_.free(local_memory_);
  room_.reset();
  if (spare_ != 0) (void)cuda_.free(spare_);
  arena_hold_.reset();
  loaded_.reset();
}

}  // namespace braid::comm
