#include "comm/device/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/device/nvlinks.h"
#include "comm/device/trouble.h"
#include "sys/cuda/launch.h"
#include "sys/cuda/owned.h"
#include "transport/nvlink/fatbins.h"
#include "transport/pcie/fatbins.h"
#include "transport/pcie/local_copy.h"

namespace braid::comm {

namespace {

constexpr size_t kHostPageBytes = 4096;
constexpr int kRingThreads = 512;
constexpr uint64_t kHoldAt = 72;  // in the GPU's own memory

// Among more than two a lane is one block, and hears of a slot from several readers: with half as
// much on its way it carried 7 % of an all-gather of 256 MiB, then no more (4 H200).
constexpr uint64_t kSlotBytes = 128 << 10;
constexpr uint64_t size_of_slots(int num_ranks) {
  return num_ranks > 2 ? kSlotBytes : kSlotBytes / 2;
}

}  // namespace

// ---- making ----

Result<std::unique_ptr<Device>> Device::create(Comm::State& state, sys::Cuda& cuda, int ordinal,
                                               const AreaSizes& areas, sys::FabricLibrary* nics) {
  const Deadline deadline = Deadline::after_ns(state.config.duration_ns("BRAID_TIMEOUT"));
  std::unique_ptr<Device> device(new Device(state, cuda, ordinal));
  device->areas_ = areas;
  Status own = device->prepare();
  BRAID_ASSIGN_OR_RETURN(device->arena_,
                         nvlink::share_window(*state.group, cuda,
                                              {"gpu arena", ordinal, device->arena_memory_,
                                               device->arena_bytes(), std::move(own)},
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
  scratch_bytes_ = state_.config.bytes("BRAID_GPU_SCRATCH") / kPageBytes * kPageBytes;
  if (scratch_bytes_ < 8 * kPageBytes)
    return invalid_argument("BRAID_GPU_SCRATCH: asked for at least 16 MiB, found {} bytes",
                            state_.config.bytes("BRAID_GPU_SCRATCH"));
  packet_limit_ = state_.config.bytes("BRAID_GPU_PACKETS");
  line_limit_ = state_.config.bytes("BRAID_GPU_LINES");
  direct_limit_ = state_.config.bytes("BRAID_GPU_DIRECT");
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
  BRAID_RETURN_IF_ERROR(make_page());
  BRAID_RETURN_IF_ERROR(make_arena());
  for (int side = 0; side < kNumSides; ++side) {
    const auto priority =
        side == kPushes ? sys::StreamPriority::kNormal : sys::StreamPriority::kHigh;
    BRAID_ASSIGN_OR_RETURN(sides_[static_cast<size_t>(side)], cuda_.create_stream(priority));
  }
  for (sys::Event& event : events_) {
    BRAID_ASSIGN_OR_RETURN(event, cuda_.create_event(sys::EventTiming::kOff));
  }
  BRAID_ASSIGN_OR_RETURN(last_call_, cuda_.create_event(sys::EventTiming::kOff));
  BRAID_ASSIGN_OR_RETURN(last_captured_, cuda_.create_event(sys::EventTiming::kOff));
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
  sys::Module& module = modules_[fatbin.data()];
  if (module.handle == nullptr) {
    BRAID_ASSIGN_OR_RETURN(module, cuda_.load_module(fatbin));
  }
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel found, cuda_.kernel(module, name));
  if (shared_bytes > 0) BRAID_RETURN_IF_ERROR(cuda_.allow_shared_bytes(found, shared_bytes));
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

// The GPU's own memory: the counters of packets and of direct calls, the word that says a wait has
// failed, the numbers of barriers and of meetings of pairs, the ring's progress.
Status Device::make_arena() {
  static_assert(nvlink::kBoardBytes <= kScratchAt);
  constexpr uint64_t kFailedAt = 64;
  static_assert(kHoldAt >= kFailedAt + sizeof(uint32_t) && kHoldAt + 8 <= 96);  // line_state()
  constexpr uint64_t kNumbersAt = 160;
  constexpr uint64_t kPairNumbersAt = kNumbersAt + sizeof(uint64_t) * nvlink::kNumChannels;
  constexpr uint64_t kProgressAt = kPairNumbersAt + sizeof(uint64_t) * nvlink::kMostRanks;
  constexpr uint64_t kLocalBytes = kProgressAt + sizeof(pcie::RingProgress);
  BRAID_ASSIGN_OR_RETURN(arena_memory_, cuda_.alloc(arena_bytes()));
  BRAID_ASSIGN_OR_RETURN(local_memory_, cuda_.alloc(kLocalBytes));
  team_.has_failed = sys::pointer_to<uint32_t>(local_memory_ + kFailedAt);
  board_.numbers = sys::pointer_to<uint64_t>(local_memory_ + kNumbersAt);
  board_.pair_numbers = sys::pointer_to<uint64_t>(local_memory_ + kPairNumbersAt);
  ring_.progress = sys::pointer_to<pcie::RingProgress>(local_memory_ + kProgressAt);
  BRAID_RETURN_IF_ERROR(cuda_.fill(arena_memory_, 0, kScratchAt, {}));
  BRAID_RETURN_IF_ERROR(cuda_.fill(
      arena_memory_ + kScratchAt + scratch_bytes_, 0,
      areas_.packet_bytes + areas_.line_bytes + areas_.relay_bytes + areas_.direct_flag_bytes, {}));
  BRAID_RETURN_IF_ERROR(cuda_.fill(local_memory_, 0, kLocalBytes, {}));
  return cuda_.synchronize({});  // before any peer learns of it
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
  BRAID_ASSIGN_OR_RETURN(const auto verdicts,
                         state_.group->exchange("gpu host ring pinned", own.to_string(), deadline));
  for (size_t r = 0; r < verdicts.size(); ++r)
    if (verdicts[r] != "ok") return unavailable("gpu host ring: rank {}: {}", r, verdicts[r]);
  return {};
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

void Device::detach(bool in_peace) {
  must_stop_ = true;
  if (watch_.joinable()) watch_.join();
  if (!in_peace || state_.group->broken() || !status().ok())
    std::atomic_ref(page_->must_abort).store(1);  // no kernel of ours waits any longer
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  for (const sys::Stream stream : sides_)
    if (stream.handle != nullptr) (void)cuda_.synchronize(stream);
  (void)finish_last_call();
  call_watch_.settle();
  registered_.clear();
  forgotten_.clear();
  arena_ = {};
}

Device::~Device() {
  const auto scope =
      sys::CurrentDevice::use(cuda_, ordinal_);  // owners need a context to give back
  if (page_ != nullptr) detach(false);
  balance_.reset();
  rdma_.reset();
  call_watch_ = {};
  for (const sys::Stream stream : sides_)
    if (stream.handle != nullptr) (void)cuda_.destroy_stream(stream);
  for (const sys::Event event : events_)
    if (event.handle != nullptr) (void)cuda_.destroy_event(event);
  for (const sys::Event event : {last_call_, last_captured_})
    if (event.handle != nullptr) (void)cuda_.destroy_event(event);
  for (void* memory : pinned_) (void)cuda_.unregister_host(memory);
  if (page_ != nullptr) munmap(page_, kHostPageBytes);
  if (local_memory_ != 0) (void)cuda_.free(local_memory_);
  if (arena_memory_ != 0) (void)cuda_.free(arena_memory_);
  for (const auto& [fatbin, module] : modules_)
    if (module.handle != nullptr) (void)cuda_.unload_module(module);
}

// ---- registered memory ----

Status Device::register_memory(sys::DevicePtr memory, uint64_t bytes) {
  const Deadline deadline = Deadline::after_ns(team_.timeout_ns);
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  Status refusal = close_forgotten();  // told to all: they wait for this rank
  const auto facts = cuda_.pointer_facts(memory);
  if (refusal.ok()) refusal = facts.status();
  if (refusal.ok() && registered_.contains(memory))
    refusal = invalid_argument("memory at {:#x} is registered already", memory);
  BRAID_ASSIGN_OR_RETURN(
      nvlink::Window window,
      nvlink::share_window(*state_.group, cuda_,
                           {"registered memory", ordinal_, memory, bytes, std::move(refusal)},
                           deadline));
  registered_[memory] = {bytes, facts.value().buffer_id, std::move(window), false};
  return {};
}

Status Device::unregister_memory(sys::DevicePtr memory) {
  BRAID_RETURN_IF_ERROR(forget_memory(memory));
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));  // maybe another thread than the last time
  BRAID_RETURN_IF_ERROR(close_forgotten());
  return state_.group->barrier("unregister", Deadline::after_ns(team_.timeout_ns));
}

Status Device::forget_memory(sys::DevicePtr memory) {
  const auto found = registered_.find(memory);
  if (found == registered_.end())
    return invalid_argument("memory at {:#x} is not registered", memory);
  forgotten_.push_back(std::move(found->second));
  registered_.erase(found);
  return {};
}

Status Device::close_forgotten() {
  if (forgotten_.empty()) return {};
  BRAID_RETURN_IF_ERROR(finish_last_call());
  forgotten_.clear();
  return {};
}

/// Of memory of cuMemCreate. That it is not is noted once.
bool Device::is_current(Registered& entry, sys::DevicePtr memory, uint64_t bytes) {
  const sys::RelaxedCapture relaxed(cuda_);
  if (entry.window.is_current(memory, bytes)) return true;
  if (!std::exchange(entry.was_remapped, true)) {
    std::string line = fmt::format(
        "gpu {}: registered memory at {:#x} was unmapped since; calls on it go through scratch",
        ordinal_, memory);
    log::warn("comm", "{}", line);
    state_.note_event(std::move(line));
  }
  return false;
}

Result<Landing> Device::find_landing(sys::DevicePtr memory, uint64_t bytes) {
  auto next = registered_.upper_bound(memory);
  if (next == registered_.begin()) return Landing{};
  auto& [base, entry] = *--next;
  if (memory >= base + entry.bytes || memory + bytes > base + entry.bytes) return Landing{};
  if (entry.window.is_mapped_memory())
    return is_current(entry, memory, bytes) ? Landing{&entry.window, memory - base} : Landing{};
  BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, cuda_.pointer_facts(memory));
  if (facts.buffer_id != entry.buffer_id)
    return invalid_argument("memory at {:#x} was registered, freed, and allocated anew", memory);
  return Landing{&entry.window, memory - base};
}

Device::Registrations Device::registrations() const {
  Registrations found;
  for (const auto& [memory, entry] : registered_) {
    ++found.spans;
    found.bytes += entry.bytes;
    found.remapped += entry.was_remapped ? 1 : 0;
  }
  return found;
}

// ---- one call ----

Status Device::begin(sys::Stream user) {
  BRAID_RETURN_IF_ERROR(status());
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda_.capture_state(user));
  is_captured_ = capture != sys::CaptureState::kNone;
  has_captures_ = has_captures_ || is_captured_;
  is_settled_ = std::exchange(settles_, false) && !has_captures_;
  if (is_captured_) return follow_captured(user);
  return has_last_call_ ? cuda_.wait_event(user, last_call_) : Status();
}

// Two calls of one graph on streams that nothing joins would use the same scratch at once. Captured
// work may not wait for an event of another capture, or of none.
Status Device::follow_captured(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t id, cuda_.capture_id(user));
  return id != 0 && id == captured_in_ ? cuda_.wait_event(user, last_captured_) : Status();
}

Status Device::note_captured(sys::Stream user) {
  BRAID_ASSIGN_OR_RETURN(captured_in_, cuda_.capture_id(user));
  return captured_in_ != 0 ? cuda_.record(last_captured_, user) : Status();
}

Status Device::end(sys::Stream user) {
  if (balance_) {
    balance_->end_call();
    for (std::string& line : balance_->take_log()) state_.note_event(std::move(line));
  }
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda_.capture_state(user));
  if (capture != sys::CaptureState::kNone) return note_captured(user);
  has_last_call_ = true;
  return cuda_.record(last_call_, user);
}

// Through the event: the stream of the last call was the user's, who may have destroyed it since.
Status Device::finish_last_call() {
  if (!has_last_call_) return {};
  BRAID_RETURN_IF_ERROR(cuda_.wait_event(sides_[kCopies], last_call_));
  return cuda_.synchronize(sides_[kCopies]);
}

void Device::settle_calls() {
  if (!call_watch_.has_pending()) return;
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  if (scope.ok()) call_watch_.settle();
}

Result<sys::Event> Device::mark(sys::Stream stream) {
  const sys::Event event = events_[next_event_++ % events_.size()];
  BRAID_RETURN_IF_ERROR(cuda_.record(event, stream));
  return event;
}

Status Device::after(sys::Stream to, sys::Stream from) {
  BRAID_ASSIGN_OR_RETURN(const sys::Event point, mark(from));
  return wait(to, point);
}

Status Device::barrier(sys::Stream stream, int channel, uint64_t signature) {
  const uint32_t everyone = (1U << size()) - 1;
  return meet(stream, channel, {signature, everyone, everyone});
}

Status Device::barrier_of_pairs(sys::Stream stream, int channel,
                                const nvlink::PairMeeting& meeting) {
  return sys::launch(cuda_, barrier_of_pairs_kernel_, {1, 32, 0}, stream, team_, board_,
                     static_cast<int32_t>(channel), meeting);
}

Status Device::meet_pairs(sys::Stream stream, uint32_t with) {
  return sys::launch(cuda_, pairs_kernel_, {1, 32, 0}, stream, team_, board_, with);
}

Status Device::exchange_short(sys::Stream stream, int channel, const nvlink::ShortBlocks& blocks) {
  if (blocks.num_blocks == 0) return {};
  const auto num_blocks = static_cast<uint32_t>(blocks.num_blocks * blocks.num_parts);
  return sys::launch(cuda_, short_kernel_, {num_blocks, nvlink::kShortThreads, 0}, stream, team_,
                     board_, static_cast<int32_t>(channel), blocks);
}

Status Device::step(sys::Stream stream, int channel, int teller) {
  const uint32_t everyone = (1U << size()) - 1;
  return rank() == teller ? meet(stream, channel, {0, everyone, 0})
                          : meet(stream, channel, {0, 0, 1U << teller});
}

Status Device::meet(sys::Stream stream, int channel, const nvlink::Meeting& meeting) {
  return sys::launch(cuda_, barrier_kernel_, {1, 32, 0}, stream, team_, board_,
                     static_cast<int32_t>(channel), meeting);
}

void Device::count_sent(CallWatch::Link link, const pcie::Flows& flows) {
  for (int i = 0; i < flows.num_flows; ++i)
    if (flows.flow[i].source != nullptr) call_watch_.sends(link, flows.flow[i].bytes);
}

Status Device::send_over_host(sys::Stream stream, const pcie::Flows& flows) {
  count_sent(CallWatch::kPcie, flows);
  return run_ring(stream, ring_, flows);
}

Status Device::send_over_host_beside_sums(sys::Stream stream, const pcie::Flows& flows) {
  count_sent(CallWatch::kPcie, flows);
  pcie::Flows narrow = flows;
  narrow.num_lanes = ring_engine_.lanes_beside_sums(flows.num_flows);
  pcie::HostRing ring = ring_;
  if (ring.num_slots >= 4 && ring.num_slots % 2 == 0) {
    ring.num_slots /= 2;
    if (ring.slot_bytes < kSlotBytes) ring.slot_bytes *= 2;
  }
  return run_ring(stream, ring, narrow);
}

Status Device::send_over_rdma(sys::Stream stream, const pcie::Flows& flows) {
  count_sent(CallWatch::kNic, flows);
  pcie::Flows watched = flows;
  watched.num_lanes = host_lanes(size());  // the proxy looks at no others
  return run_ring(stream, rdma_->ring(), watched);
}

Status Device::run_ring(sys::Stream stream, const pcie::HostRing& ring, const pcie::Flows& flows) {
  if (flows.num_flows == 0) return {};
  if (flows.num_lanes > ring.num_lanes)
    return internal_error("gpu host ring: {} lanes, {} have slots", flows.num_lanes,
                          ring.num_lanes);
  const auto num_blocks = static_cast<uint32_t>(flows.num_flows * flows.num_lanes);
  if (ring_engine_.has_bulk && are_whole_vectors(flows)) {
    pcie::Flows windowed = flows;
    windowed.open_tiles = static_cast<int32_t>(ring_engine_.open_tiles_of(ring, flows));
    return sys::launch(cuda_, bulk_ring_kernel_,
                       {num_blocks, pcie::kBulkThreads, pcie::kBulkSharedBytes}, stream, team_,
                       ring, windowed);
  }
  return sys::launch(cuda_, ring_kernel_, {num_blocks, kRingThreads, 0}, stream, team_, ring,
                     flows);
}

Status Device::copy(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes) {
  return bytes == 0 || to == from ? Status() : cuda_.copy_on_device(to, from, bytes, stream);
}

Status Device::copy_beside_ring(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                                uint64_t bytes) {
  // A block copies 46 GB/s. Ten are done with a rank's own block when NVLink is done with the
  // other's; among more ranks there is more time.
  const uint32_t num_blocks = size() == 2 ? 10 : 6;
  if (!ring_engine_.has_bulk || to % 16 != 0 || from % 16 != 0 || to == from)
    return copy(stream, to, from, bytes);
  return sys::launch(cuda_, local_copy_kernel_,
                     {num_blocks, pcie::kLocalThreads, pcie::kLocalSharedBytes}, stream,
                     sys::pointer_to<std::byte>(to), sys::pointer_to<const std::byte>(from), bytes);
}

Status Device::push(sys::Stream stream, std::span<const sys::DeviceCopy> copies) {
  for (const sys::DeviceCopy& copy : copies)
    if (copy.to != copy.from) call_watch_.sends(CallWatch::kNvlink, copy.bytes);
  if (link_cap_gbps_ > 0) return push_held(stream, copies);
  std::array<sys::DeviceCopy, nvlink::kMostRanks> some;
  size_t num_copies = 0;
  for (const sys::DeviceCopy& copy : copies)
    if (copy.bytes > 0 && copy.to != copy.from) some[num_copies++] = copy;
  return num_copies == 0 ? Status() : cuda_.copy_batch({some.data(), num_copies}, stream);
}

// Piece by piece to each in turn, so that all of them see the rate all the time.
Status Device::push_held(sys::Stream stream, std::span<const sys::DeviceCopy> copies) {
  // Far more than a copy and its hold cost to begin, which is 25 us together.
  constexpr uint64_t kHeldBytes = 16 << 20;
  BRAID_RETURN_IF_ERROR(hold(stream, 0));
  bool is_done = false;
  for (uint64_t at = 0; !is_done; at += kHeldBytes) {
    is_done = true;
    for (const sys::DeviceCopy& whole : copies) {
      if (whole.bytes <= at) continue;
      const uint64_t bytes = std::min(kHeldBytes, whole.bytes - at);
      BRAID_RETURN_IF_ERROR(copy(stream, whole.to + at, whole.from + at, bytes));
      BRAID_RETURN_IF_ERROR(hold(stream, bytes));
      is_done = is_done && whole.bytes <= at + kHeldBytes;
    }
  }
  return {};
}

Status Device::hold(sys::Stream stream, uint64_t bytes) {
  const auto cost_ns = static_cast<uint64_t>(static_cast<double>(bytes) / link_cap_gbps_);
  return sys::launch(cuda_, hold_kernel_, {1, 1, 0}, stream, local_memory_ + kHoldAt, cost_ns);
}

// ---- stage 2 ----

Status Device::start_balance(Deadline deadline) {
  if (size() == 1) return {};
  BRAID_ASSIGN_OR_RETURN(
      balance_, HostBalance::create(*state_.group, state_.config, cuda_, shares_, deadline));
  return {};
}

Status Device::count_call(BalancedCall call) {
  call.is_captured = is_captured_;
  return balance_ ? balance_->begin_call(call) : Status();
}

std::optional<HostBalance::Summary> Device::balance_summary() const {
  if (!balance_) return std::nullopt;
  return balance_->summary();
}

// ---- trouble ----

Status Device::status() const {
  const std::lock_guard lock(trouble_mutex_);
  return trouble_;
}

Status Device::look_for_trouble() {
  const auto code = std::atomic_ref(page_->trouble.code).load(std::memory_order_acquire);
  if (code == 2) return in_words(page_->trouble);
  if (state_.group->broken()) return state_.group->fate();
  return rdma_trouble();
}

// A dead process breaks its connections before the group tells of it, which is the better reason.
Status Device::rdma_trouble() {
  constexpr int64_t kNewsFirstNs = 100'000'000;
  const Status found = rdma_->status();
  if (found.ok()) return {};
  if (rdma_failed_ns_ == 0) rdma_failed_ns_ = now_ns();
  return now_ns() - rdma_failed_ns_ >= kNewsFirstNs ? found : Status();
}

// A page of host memory and a flag, a thousand times a second: far below a percent of a core.
void Device::watch() {
  constexpr auto kLookEvery = std::chrono::milliseconds(1);
  for (; !must_stop_; std::this_thread::sleep_for(kLookEvery)) {
    Status found = look_for_trouble();
    if (found.ok()) continue;
    std::atomic_ref(page_->must_abort).store(1);
    log::error("comm", "gpu {}: {}", ordinal_, found.message());
    state_.group->report(found);
    const std::lock_guard lock(trouble_mutex_);
    trouble_ = std::move(found);
    return;
  }
}

}  // namespace braid::comm
