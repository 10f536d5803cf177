// A device's making and its end.
#include "comm/device/device.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/device/links/nvlinks.h"
#include "sys/cuda/owned.h"
#include "sys/host/thread.h"

namespace braid::comm {

Device::Device(Comm::State& state, sys::Cuda& cuda, int ordinal)
    : state_(state),
      cuda_(cuda),
      ordinal_(ordinal),
      kernels_(std::make_unique<KernelCache>(cuda, ordinal)),
      arena_(std::make_unique<SymmetricArena>(*state.group, cuda, ordinal)),
      barriers_(std::make_unique<Barriers>(cuda)),
      call_watch_(std::make_unique<CallWatch>()) {
  team_.rank = state.rank();
  team_.size = gpus_.num_ranks = state.size();
  team_.timeout_ns = state.config.duration_ns("BRAID_TIMEOUT");
}

Result<std::unique_ptr<Device>> Device::create(Comm::State& state, sys::Cuda& cuda,
                                               const DeviceRequest& request) {
  const Deadline deadline = Deadline::after_ns(state.config.duration_ns("BRAID_TIMEOUT"));
  std::unique_ptr<Device> device(new Device(state, cuda, request.ordinal));
  Status own = device->prepare(request);
  BRAID_RETURN_IF_ERROR(device->arena_->share(std::move(own), deadline));
  device->barriers_->set(device->team_, device->arena_->signal_pad());
  BRAID_RETURN_IF_ERROR(device->links_->connect(device->shape(), deadline));
  BRAID_RETURN_IF_ERROR(device->meet(deadline));
  device->faults_->start([links = device->links_.get()] { return links->status(); });
  return device;
}

Status Device::prepare(const DeviceRequest& request) {
  if (state_.size() > nvlink::kMostRanks)
    return unsupported("{} ranks: GPUs of one comm are at most {}", state_.size(),
                       nvlink::kMostRanks);
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(ordinal_));
  gpus_.most_shared_bytes = static_cast<uint32_t>(std::max(0, facts.max_shared_bytes_per_block));
  gpus_.sum_blocks =
      static_cast<uint64_t>(std::max<int64_t>(0, state_.config.integer("BRAID_GPU_SUM_BLOCKS")));
  BRAID_RETURN_IF_ERROR(barriers_->load(*kernels_));
  BRAID_ASSIGN_OR_RETURN(faults_, FaultWatch::create(*state_.group, cuda_, ordinal_));
  faults_->give_page_to(team_);
  BRAID_ASSIGN_OR_RETURN(order_, CallOrder::create(cuda_));
  registrations_ = std::make_unique<Registrations>(state_, cuda_, ordinal_, *order_);
  BRAID_RETURN_IF_ERROR(prepare_arena(request.arena));
  links_ = std::make_unique<LinkSet>(
      request.links({state_, cuda_, ordinal_, team_, *kernels_, *call_watch_, request.nics}));
  BRAID_RETURN_IF_ERROR(links_->prepare());
  for (const auto& link : links_->all())
    if (link->stream().handle != nullptr) order_->add_stream(link->stream());
  call_watch_->start({state_.observer.get(), cuda_, ordinal_, order_->side(CallOrder::kCopies)},
                     [this] { return !faults_->look().ok(); });
  return {};
}

Status Device::prepare_arena(ArenaRequest request) {
  const uint64_t asked_bytes = state_.config.bytes("BRAID_GPU_SCRATCH");
  const uint64_t whole_bytes = asked_bytes / kLargePageBytes * kLargePageBytes;
  request.scratch_bytes =
      request.scratch_bytes == 0 ? whole_bytes : std::min(whole_bytes, request.scratch_bytes);
  if (whole_bytes < 8 * kLargePageBytes)
    return invalid_argument("BRAID_GPU_SCRATCH: asked for at least 16 MiB, found {} bytes",
                            asked_bytes);
  BRAID_RETURN_IF_ERROR(arena_->allocate(request, *order_));
  team_.has_failed = sys::pointer_to<uint32_t>(arena_->local_at(offsetof(LocalMemory, has_failed)));
  return {};
}

// What all ranks must have alike; the links compare it.
std::string Device::shape() const {
  return fmt::format("{}sums:{},{}", links_->shape(), gpus_.sum_blocks, arena_->shape());
}

// Some kernels' stores must not be torn (coll/lines/lines.cuh): all pairs have NVLink, or no rank
// uses them.
Status Device::meet(Deadline deadline) {
  if (size() == 1) return {};
  BRAID_ASSIGN_OR_RETURN(const Nvlinks links,
                         find_nvlinks(*state_.group, cuda_, ordinal_, deadline));
  gpus_.least_sms = links.least_sms;
  gpus_.are_shared = links.are_shared;
  if (links.why_not.empty()) return {};
  const std::string names = arena_->lacks_whole_stores();
  if (rank() == 0 && !names.empty())
    log::info("comm", "gpu messages do not go by {}: {}", names, links.why_not);
  return {};
}

Status Device::begin(sys::Stream user) {
  BRAID_RETURN_IF_ERROR(faults_->status());
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  return order_->begin(user);
}

Status Device::end(sys::Stream user) {
  for (std::string& line : links_->end_call()) state_.note_event(std::move(line));
  return order_->end(user);
}

// On a stream of its own, which nothing is before.
void Device::fail_kernels() const {
  constexpr auto kNap = std::chrono::microseconds(50);
  auto stream = sys::own<sys::OwnedStream>(cuda_, cuda_.create_stream(sys::StreamPriority::kHigh));
  if (!stream.ok() || team_.has_failed == nullptr) return;
  const auto word = reinterpret_cast<sys::DevicePtr>(team_.has_failed);
  if (!cuda_.fill(word, 1, sizeof *team_.has_failed, stream->get()).ok()) return;
  const Deadline patience = Deadline::after_ns(50_ms);
  while (!patience.passed()) {
    auto is_done = cuda_.is_done(stream->get());
    if (!is_done.ok() || *is_done) return;
    std::this_thread::sleep_for(kNap);
  }
}

bool Device::detach(bool in_peace) {
  faults_->stop();
  const bool breaks_off = !in_peace || state_.group->broken() || !faults_->status().ok();
  if (breaks_off) faults_->end_waits();
  const auto scope = sys::CurrentDevice::use(cuda_, ordinal_);
  if (links_) links_->drain(cuda_);
  if (order_) order_->drain();
  call_watch_->settle();
  if (order_ && order_->has_captures() && !are_graphs_through(!breaks_off)) {
    links_->stop();
    return false;
  }
  if (order_) order_->forget_captures();
  if (registrations_) registrations_->close();
  arena_->close();
  return true;
}

// Nothing tells when a replay ends: all of the GPU's work is waited for. Where ours was broken off
// other work may be stuck, and is not waited for long; without a thread for it, not at all.
bool Device::are_graphs_through(bool in_peace) {
  if (in_peace) return cuda_.synchronize_device().ok();
  constexpr auto kPatience = std::chrono::seconds(2);
  auto through = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = through->get_future();
  auto waiting = sys::start_thread("wait for graphs", [&cuda = cuda_, ordinal = ordinal_, through] {
    const sys::RelaxedCapture relaxed(cuda);
    const auto scope = sys::CurrentDevice::use(cuda, ordinal);
    through->set_value(cuda.synchronize_device().ok());
  });
  if (!waiting.ok()) return false;
  waiting->detach();
  return answer.wait_for(kPatience) == std::future_status::ready && answer.get();
}

void leave_to_graph(std::shared_ptr<Device> device) {
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
  if (faults_) (void)detach(false);
  links_.reset();
  call_watch_.reset();
  barriers_.reset();
  registrations_.reset();
  arena_.reset();
  order_.reset();
  faults_.reset();
  kernels_.reset();
}

}  // namespace braid::comm
