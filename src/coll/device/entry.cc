#include "coll/device/entry.h"

#include <algorithm>
#include <mutex>

#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "coll/device/packets.h"
#include "coll/device/preload.h"
#include "coll/device/relay.h"
#include "coll/device/share_cache.h"
#include "coll/device/tune.h"
#include "comm/state.h"
#include "group/agree.h"
#include "sys/cuda/owned.h"

namespace braid::coll::device {

namespace {

// Of a message that is not large nothing lies in it. A large one goes in smaller pieces for as long as
// there is no room for more. A communicator takes 4 MiB more than its arena: streams, events, rounding
// (records/drop_in_memory_4.json).
constexpr uint64_t kSmallScratchBytes = 4 << 20;

// Of a large page that the counters are in, too.
constexpr uint64_t kSmallSpareBytes = 1 << 20;

comm::ArenaRequest all_memory(const Config& config, int num_ranks) {
  return {config.bytes("BRAID_GPU_SCRATCH"),
          {packet_area(config, num_ranks), line_area(config, num_ranks), relay_area(num_ranks),
           direct_area(config, num_ranks)}};
}

/// Of kSmall: less scratch, and direct kernels' area for small messages alone.
comm::ArenaRequest memory_for(const Config& config, int num_ranks, Memory memory) {
  comm::ArenaRequest request = all_memory(config, num_ranks);
  if (memory == Memory::kAll) return request;
  request.scratch_bytes = std::min(request.scratch_bytes, kSmallScratchBytes);
  request.spare_bytes = kSmallSpareBytes;
  request.areas.back() =
      direct_area_of(std::min(config.bytes("BRAID_GPU_DIRECT"), kSmallBytes), num_ranks);
  return request;
}

/// What a room has in place of that.
comm::ArenaRequest room_for(const Config& config, int num_ranks) {
  return {config.bytes("BRAID_GPU_SCRATCH"), {direct_area(config, num_ranks)}};
}

/// The links in their order. One after the other: a later one is measured beside those before.
Status tune_links(comm::Device& device, comm::Comm::State& state, Deadline deadline) {
  TuneWork work;
  // In vain at the deadline: a call waits for this.
  work.time_ns = std::min(state.config.duration_ns("BRAID_TUNE_TIME"), deadline.left_ns() / 3);
  for (const auto& link : device.links().beside()) {
    if (link->tuning() == comm::LinkTuning::kOneSize)
      BRAID_RETURN_IF_ERROR(tune_shares(device, *link, *state.group, deadline, work).status());
    if (link->tuning() != comm::LinkTuning::kBySize) continue;
    BRAID_ASSIGN_OR_RETURN(const bool may_go_on,
                           ensure_shares(device, *link, state, deadline, work));
    if (!may_go_on) break;
  }
  return {};
}

/// Behind Device::create(): peers may write into our memory from here on.
Status make_ready(comm::Device& device, comm::Comm::State& state, Deadline deadline) {
  // Where ranks take turns on a GPU, a measurement tells of the turns, and takes minutes.
  if (state.size() > 1 && state.config.text("BRAID_TUNE") != "off" && !device.gpus().are_shared)
    BRAID_RETURN_IF_ERROR(tune_links(device, state, deadline));
  return device.links().start(deadline);
}

Result<comm::Device*> attached(comm::Comm::State& state, int ordinal, Memory memory,
                               sys::Cuda& cuda) {
  if (!state.device) {
    // Fails without a driver; Device::create() then reports that to all ranks.
    const auto scope = sys::CurrentDevice::use(cuda, ordinal);
    BRAID_RETURN_IF_ERROR(attach(state, cuda, ordinal, memory));
  }
  if (state.device->ordinal() != ordinal)
    return invalid_argument("gpu {}: this comm uses gpu {}; one comm has one GPU per rank", ordinal,
                            state.device->ordinal());
  return state.device.get();
}

/// All ranks hear of it, and every later call of this one answers it.
Status broken_off(comm::Comm::State& state, const Status& why) {
  state.fatal = why;
  state.group->report(why);
  return why;
}

Status with_its_context(comm::Device& device, const std::function<Status(comm::Device&)>& call) {
  BRAID_ASSIGN_OR_RETURN(const auto scope,
                         sys::CurrentDevice::use(device.cuda(), device.ordinal()));
  return call(device);
}

}  // namespace

Status make_room(comm::Comm::State& state) {
  comm::Device& device = *state.device;
  if (device.arena().has_room() || state.size() == 1) return {};
  const comm::Unobserved tuning(state.observer.get());
  const Deadline deadline = Deadline::after_ns(state.config.duration_ns("BRAID_TIMEOUT"));
  BRAID_RETURN_IF_ERROR(device.arena().make_room(room_for(state.config, state.size()), deadline));
  if (device.links().is_started()) return {};  // it had room before
  const Status ready = make_ready(device, state, deadline);
  return ready.ok() ? ready : broken_off(state, ready);
}

Status attach(comm::Comm::State& state, sys::Cuda& cuda, int ordinal, Memory memory) {
  const comm::Unobserved tuning(state.observer.get());
  const Deadline deadline = Deadline::after_ns(state.config.duration_ns("BRAID_TIMEOUT"));
  BRAID_ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Device> made,
      comm::Device::create(
          state, cuda,
          {.ordinal = ordinal, .arena = memory_for(state.config, state.size(), memory)}));
  const Status loaded = preload_kernels(*made);
  if (state.size() > 1)
    BRAID_RETURN_IF_ERROR(group::agree(*state.group, "gpu kernels", loaded, "", deadline).status());
  BRAID_RETURN_IF_ERROR(loaded);
  const Status ready = memory == Memory::kAll ? make_ready(*made, state, deadline) : Status();
  {
    // One that is not ready, too: what peers may still write to goes when the comm is closed.
    const std::lock_guard lock(state.health_mutex);  // health_json() may be looking
    state.device = std::move(made);
  }
  return ready.ok() ? ready : broken_off(state, ready);
}

Status on_device(comm::Comm& comm, int ordinal, const std::function<Status(comm::Device&)>& call,
                 Memory memory, sys::Cuda& cuda) {
  comm::CallGuard guard(comm);
  BRAID_RETURN_IF_ERROR(guard.status());
  BRAID_ASSIGN_OR_RETURN(comm::Device * device, attached(guard.state(), ordinal, memory, cuda));
  device->order().expect_call();
  Status status = with_its_context(*device, call);
  if (status.ok()) return status;
  const bool is_harmless = status.code() == Code::kInvalidArgument || device->order().is_captured();
  if (!is_harmless) (void)broken_off(guard.state(), status);
  if (guard.state().observer) guard.state().observer->failed(status);
  return status;
}

}  // namespace braid::coll::device
