// How a seat is opened, at the first call, by all ranks of a communicator or by none.
//
// All ranks have signed the roll before NCCL's init. At the first call each seals it, arrives, and
// sets its comm up with the others; then they vote. Unless all are well the communicator stays
// NCCL's, and what was set up ends. Over several nodes the same goes through across_, whose ranks
// agree first whether they take the communicator over at all.
#include <array>
#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/units.h"
#include "bindings/nccl/core/group_watchdog.h"
#include "bindings/nccl/core/seat.h"
#include "bindings/nccl/core/shared_group.h"
#include "coll/device/entry.h"
#include "comm/node_group.h"
#include "comm/state.h"
#include "group/agree.h"
#include "sys/host/api.h"
#include "sys/net/api.h"

namespace braid::nccl {
namespace {

// All ranks are here already, so joining takes milliseconds. A rank that ends in between is found
// by this deadline alone.
constexpr int64_t kJoinTime = 15_s;

Result<std::string> fresh_token() {
  std::array<std::byte, 32> bytes{};
  BRAID_RETURN_IF_ERROR(sys::random_bytes(bytes));
  std::string token;
  for (const std::byte byte : bytes) token += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return token;
}

}  // namespace

Status Seat::open(const braid_nccl_place& place) {
  const std::lock_guard opening(opening_);
  const sys::RelaxedCapture relaxed(cuda_);
  roll_.seal();
  device_ = place.device;
  rails_ = place.rails;
  Status outcome = open_with_others(place);
  if (!is_later_) roll_.end_liveness_lock();  // it is decided, also for those who have yet to look
  return outcome;
}

// Whether all ranks have signed on this host looks the same to all of them. Over nodes, too, they
// have signed before NCCL's init.
Status Seat::open_with_others(const braid_nccl_place& place) {
  is_later_ = false;
  if (is_aborted_) return unavailable("aborted");
  const Status here = roll_.check(place.num_ranks, config_.flag("BRAID_NCCL_SHARED"));
  if (here.ok() || !across_) {
    across_.reset();
    return here.ok() ? open_here(place) : here;
  }
  is_later_ = place.op != BRAID_NCCL_ALL_GATHER && place.op != BRAID_NCCL_REDUCE_SCATTER;
  return is_later_ ? here : open_over_nodes(place);
}

Status Seat::open_here(const braid_nccl_place& place) {
  if (place.rank < 0) {
    roll_.decline();  // before arriving, after which the others would wait for this rank to join
    return internal_error("NCCL does not say which rank this is");
  }
  const int64_t patience_ns = config_.duration_ns("BRAID_NCCL_MEET");
  has_arrived_ = true;
  BRAID_RETURN_IF_ERROR(
      roll_.arrive(place.num_ranks, Deadline::after_ns(patience_ns), is_aborted()));
  const Deadline deadline = Deadline::after_ns(patience_ns);
  const Status own = set_up(place.rank, place.num_ranks, place.device, deadline);
  const Status verdict = roll_.vote(own.ok(), place.num_ranks, deadline, is_aborted());
  BRAID_RETURN_IF_ERROR(note_opened(verdict));
  return verdict.ok() || own.ok() ? verdict : own;
}

/// Notes the ranks' verdict. Not ok: all that was set up ends.
Status Seat::note_opened(const Status& verdict) {
  {
    const std::lock_guard lock(mutex_);  // a watchdog's status() waits for it
    is_setting_up_ = false;
    is_open_ = verdict.ok();
  }
  if (verdict.ok()) return {};
  if (comm_) (void)comm_->close(false);
  const std::lock_guard lock(mutex_);
  if (group_) group_->leave();
  return {};
}

Status Seat::open_over_nodes(const braid_nccl_place& place) {
  if (place.rank < 0) {
    across_.reset();  // the others hear that a rank has ended
    return internal_error("NCCL does not say which rank this is");
  }
  const int version = place.rails != nullptr ? place.rails->version : 0;
  BRAID_ASSIGN_OR_RETURN(AcrossNodes::Agreed agreed,
                         across_->come(place.rank, place.num_ranks, version, is_aborted()));
  if (!agreed.why_not) {
    const Deadline deadline = Deadline::after_ns(config_.duration_ns("BRAID_NCCL_MEET"));
    const Status own = set_up_over_nodes(deadline);
    if (!own.ok() && group_) group_->report(own);  // ranks that wait for this one wait in vain
    auto voted = across_->vote(own.ok(), is_aborted());
    if (voted.ok() && voted->why_not && !own.ok()) voted->why_not = own;
    const Status verdict = !voted.ok()      ? voted.status()
                           : voted->why_not ? *voted->why_not
                                            : Status();
    (void)note_opened(verdict);
    BRAID_RETURN_IF_ERROR(voted.status());
    agreed = *voted;
  }
  if (agreed.why_not) {
    across_.reset();
    return *agreed.why_not;
  }
  is_over_nodes_ = true;
  race_budget_.go_over_nodes();
  return {};
}

Status Seat::use_group(std::shared_ptr<group::Group> group) {
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  is_setting_up_ = true;
  return is_aborted_ ? unavailable("aborted") : Status();
}

// The comm is one of this node's ranks, and what they exchange at its making goes through all
// nodes' ranks. A rank that fails tells the group, which ends the setup on all.
Status Seat::set_up_over_nodes(Deadline deadline) {
  if (rails_ == nullptr) return internal_error("there is no library to make rails of");
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<group::Group> group,
                         across_->join(Deadline::after_ns(kJoinTime), is_aborted()));
  BRAID_RETURN_IF_ERROR(use_group(group));
  BRAID_ASSIGN_OR_RETURN(const auto watchdog, GroupWatchdog::begin(*group, deadline));
  Config config = config_;
  BRAID_RETURN_IF_ERROR(config.set("BRAID_GPU_RDMA", "off"));  // the NICs are the rails'
  BRAID_ASSIGN_OR_RETURN(
      comm_, comm::Comm::create(std::make_unique<comm::NodeGroup>(*group, across_->map()), config));
  comm_->call_it("nccl " + roll_.name());
  BRAID_RETURN_IF_ERROR(coll::device::on_device(
      *comm_, device_, [](comm::Device&) { return Status(); }, coll::device::Memory::kSmall,
      cuda_));
  return comm::NodeGroup(*group, across_->map()).finish(deadline);
}

Status Seat::set_up(int rank, int num_ranks, int device, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const Rendezvous rendezvous, meet(rank));
  group::Identity identity;
  identity.rank = identity.local_rank = rank;
  identity.size = num_ranks;
  identity.store_port = rendezvous.port;
  identity.job_token = rendezvous.token;
  identity.job_id = roll_.name();
  const group::Interrupt interrupt = [this] {
    return is_aborted_ ? unavailable("aborted") : Status();
  };
  BRAID_ASSIGN_OR_RETURN(
      std::shared_ptr<group::Group> group,
      group::Group::join(identity, config_, Deadline::after_ns(kJoinTime), interrupt));
  group->set_interrupt({});
  BRAID_RETURN_IF_ERROR(use_group(group));
  BRAID_ASSIGN_OR_RETURN(const auto watchdog, GroupWatchdog::begin(*group, deadline));
  BRAID_ASSIGN_OR_RETURN(comm_, comm::Comm::create(std::make_unique<SharedGroup>(group), config_));
  comm_->call_it("nccl " + roll_.name());
  BRAID_RETURN_IF_ERROR(coll::device::on_device(
      *comm_, device, [](comm::Device&) { return Status(); }, coll::device::Memory::kSmall, cuda_));
  return agree_on_sharp(Deadline::after_ns(kJoinTime));
}

// Where nobody measures, one rank that has it is enough to leave sums to NCCL.
Status Seat::agree_on_sharp(Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, cuda_.device(device_));
  const char* const wanted = secure_getenv("NCCL_NVLS_ENABLE");  // NOLINT(concurrency-mt-unsafe)
  const bool is_off = wanted != nullptr && std::string_view(wanted) == "0";
  const int64_t own = facts.has_multicast && !is_off ? 1 : 0;
  BRAID_ASSIGN_OR_RETURN(const auto all,
                         group::exchange_numbers(*group_, "nccl sharp", {&own, 1}, deadline));
  for (const std::vector<int64_t>& of_rank : all) has_sharp_ = has_sharp_ || of_rank[0] != 0;
  return {};
}

// The port was free a moment ago. When somebody else has taken it, join() tries the next few.
Result<Rendezvous> Seat::serve() {
  BRAID_ASSIGN_OR_RETURN(const auto hosts, sys::resolve("127.0.0.1", 0));
  BRAID_ASSIGN_OR_RETURN(const sys::Fd probe, sys::listen_on(hosts.front(), 1));
  BRAID_ASSIGN_OR_RETURN(const sys::Endpoint at, sys::local_endpoint(probe.get()));
  BRAID_ASSIGN_OR_RETURN(std::string token, fresh_token());
  return Rendezvous{at.port(), std::move(token)};
}

Result<Rendezvous> Seat::meet(int rank) {
  if (rank != 0)
    return roll_.find_rendezvous(Deadline::after_ns(kJoinTime),
                                 [this] { return is_aborted_.load(); });
  BRAID_ASSIGN_OR_RETURN(Rendezvous rendezvous, serve());
  roll_.publish(rendezvous);
  return rendezvous;
}

}  // namespace braid::nccl
