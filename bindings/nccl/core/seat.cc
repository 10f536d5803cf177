#include "bindings/nccl/core/seat.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/core/enqueue.h"
#include "bindings/nccl/core/join.h"
#include "bindings/nccl/core/live_seats.h"
#include "bindings/nccl/core/settings.h"
#include "coll/device/entry.h"
#include "comm/state.h"
#include "sys/cuda/owned.h"
#include "sys/host/api.h"
#include "sys/host/thread.h"
#include "transport/nvlink/fatbins.h"

namespace braid::nccl {

namespace {

/// A random number, since processes of different containers may have the same process number. A
/// fork has another one: else its end would be taken for the end of one of its parent's threads.
Result<uint64_t> number_of_process() {
  BRAID_ASSIGN_OR_RETURN(const auto mark, sys::process_mark());
  uint64_t low = 0, high = 0;
  std::memcpy(&low, mark.data(), sizeof low);
  std::memcpy(&high, mark.data() + sizeof low, sizeof high);
  return low ^ high;
}

}  // namespace

Status check_machine() {
  BRAID_RETURN_IF_ERROR(sys::real_cuda().ready());
  if (kernels::barrier_fatbin().empty()) return unavailable("this build of braid has no kernels");
  return {};
}

Result<std::unique_ptr<Seat>> Seat::sign(const std::string& key, uint64_t settings,
                                         sys::Cuda& cuda) {
  BRAID_ASSIGN_OR_RETURN(Config config, config_for_calls());
  return sign(key, settings, cuda, std::move(config));
}

Result<std::unique_ptr<Seat>> Seat::sign(const std::string& key, uint64_t settings, sys::Cuda& cuda,
                                         Config config) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t process, number_of_process());
  BRAID_ASSIGN_OR_RETURN(Roll roll, Roll::open(key, config.text("BRAID_HOST_ID")));
  const uint64_t all_settings = fingerprint_of_settings(settings);
  BRAID_RETURN_IF_ERROR(roll.sign({process, all_settings}));
  auto across = AcrossNodes::sign(key, config, process, all_settings);
  if (!across.ok() && across.status().code() != Code::kUnsupported)
    log::info("nccl", "a communicator over nodes is left to NCCL: {}", across.status().message());
  std::unique_ptr<Seat> seat(new Seat(std::move(config), std::move(roll), cuda));
  if (across.ok()) seat->across_ = std::move(across).value();
  LiveSeats::all().add(seat.get());
  return seat;
}

Seat::~Seat() {
  close(false);
  LiveSeats::all().remove(this);
}

Status Seat::run(const braid_nccl_call& call) {
  if (is_lost()) return across_->lost();
  const sys::RelaxedCapture relaxed(cuda_);
  const auto enqueued = [&](comm::Device& device) {
    return is_over_nodes_ ? across_->run(call) : enqueue(device, call);
  };
  return coll::device::on_device(*comm_, device_, enqueued, coll::device::Memory::kAll, cuda_);
}

// Waits until all ranks are through with a step that each node takes by itself: one node may be
// through long before another one.
Result<AcrossNodes::Agreed> Seat::all_through(const Status& own, Deadline deadline) {
  if (is_over_nodes_) return across_->finish(*group_, own, deadline);
  AcrossNodes::Agreed agreed;
  if (!own.ok()) agreed.why_not = own;
  return agreed;
}

// Unlike a call that fails, a body that fails leaves the comm as it is: results land in scratch as
// before.
Status Seat::with_device(const std::function<Status(comm::Device&)>& body) {
  if (!comm_) return internal_error("the communicator was not set up");
  comm::CallGuard guard(*comm_);
  BRAID_RETURN_IF_ERROR(guard.status());
  const sys::RelaxedCapture relaxed(cuda_);
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(cuda_, device_));
  return body(*guard.state().device);
}

Status Seat::add_window(const void* memory, uint64_t bytes) {
  if (is_lost()) return across_->lost();
  const Status own = with_device(
      [&](comm::Device& device) { return device.registrations().add(address_of(memory), bytes); });
  const Deadline deadline = Deadline::after_ns(config_.duration_ns("BRAID_TIMEOUT"));
  const auto agreed = all_through(own, deadline);
  if (!agreed.ok()) {
    group_->report(agreed.status());  // the others' kernels would wait for a rank that is lost
    return agreed.status();
  }
  if (agreed->why_not && own.ok()) (void)drop_window(memory);
  return agreed->why_not.value_or(Status());
}

Status Seat::drop_window(const void* memory) {
  if (!comm_ || comm_->is_closed()) return {};  // and all windows with it
  return with_device(
      [&](comm::Device& device) { return device.registrations().forget(address_of(memory)); });
}

Status Seat::join(std::span<void* const> streams) {
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(cuda_, device_));
  std::vector<sys::Stream> all;
  for (void* const stream : streams) all.push_back({stream});
  return join_streams(cuda_, all);
}

Status Seat::status() {
  const std::lock_guard lock(mutex_);  // nobody has it for long
  if (is_lost()) return across_->lost();
  if (!is_open_) return {};  // nothing to watch any more, or not yet
  if (group_->broken()) return group_->fate();
  if (is_over_nodes_) BRAID_RETURN_IF_ERROR(across_->status());
  return comm_->state().device->faults().status();
}

void Seat::interrupt() {
  is_aborted_ = true;
  real_calls_.shut();
  {
    const std::lock_guard lock(mutex_);
    // A thread in open() waits for other ranks and does not look at us: this ends its wait.
    if (is_setting_up_) group_->report(unavailable("aborted while it was set up"));
  }
  const std::lock_guard opening(opening_);
  if (!stop()) return;
  free_caller();
  break_off_work();
}

// Calls of ours that lie behind kernels of NCCL's on their streams leave no result, either.
void Seat::break_off_work() {
  const sys::RelaxedCapture relaxed(cuda_);
  const auto scope = sys::CurrentDevice::use(cuda_, device_);
  comm::Device* const device = comm_->state().device.get();
  if (device == nullptr) {
    if (across_) (void)across_->begin_abort();
    return;
  }
  // The program may be in a call of the driver that ends only with our kernels, and the driver may
  // let nobody else in until then.
  const sys::LimitedWait breaking("break off", comm::kFreeDriver, [this, device] {
    const sys::RelaxedCapture here(cuda_);
    const auto on = sys::CurrentDevice::use(cuda_, device_);
    if (across_)
      across_->break_off(*device);
    else
      device->fail_kernels();
  });
  device->faults().end_waits();
}

// The comm goes first: it waits for a thread that is in a call, and lets no other in. What calls
// over nodes use goes after it, when no thread can be using it. In an abort, interrupt() has ended
// the rail's work before, since the comm's may wait for it.
void Seat::close(bool is_in_peace) {
  if (!is_in_peace) interrupt();
  const std::lock_guard opening(opening_);
  const bool has_comm = stop();
  const sys::RelaxedCapture relaxed(cuda_);
  if (has_comm) (void)comm_->close(is_in_peace);
  if (across_) {
    const auto scope = sys::CurrentDevice::use(cuda_, device_);
    across_->end(is_in_peace);
  }
  if (has_comm && is_over_nodes_ && sys::process_id() == process_id_) group_->leave();
}

/// Whether there is a comm to be closed.
bool Seat::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  give_up_roll();
  return comm_ != nullptr && !comm_->is_closed();
}

// A thread may be inside a call of this comm because the stream is full of work that waits for a
// lost rank. close() would wait for that thread; a failure of the group ends the waits.
void Seat::free_caller() {
  const Deadline patience = Deadline::after_ns(100_ms);
  while (comm_->state().in_call && !patience.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (comm_->state().in_call) group_->report(unavailable("aborted while a call was under way"));
}

// Else other ranks would wait for this one at a first call to which it never comes.
void Seat::give_up_roll() {
  if (sys::process_id() != process_id_) return;
  roll_.seal();
  if (!has_arrived_) roll_.decline();
}

void Seat::leave() {
  const std::lock_guard lock(mutex_);
  // A thread that is in open() has arrived already, or gives up with the process.
  if (const std::unique_lock opening(opening_, std::try_to_lock); opening.owns_lock())
    give_up_roll();
  if (group_) group_->leave();
}

}  // namespace braid::nccl
